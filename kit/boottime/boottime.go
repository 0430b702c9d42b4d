// Package boottime owns the two answers that let a note outlive a process: which
// boot of the machine this is, and how long ago that boot was.
//
// A point in time that must survive a jump of the wall clock, or a sleep of the
// machine, is written down as boot id plus boot time. It must never be compared
// across boots. In the trail it stands behind every grace, timer and back-off
// that is written down.
package boottime

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// EnvID is the variable that replaces the kernel's boot id, so that tests can
// play a reboot.
const EnvID = "STADDLE_BOOT_ID"

const idFile = "/proc/sys/kernel/random/boot_id"

// ID returns the id of this boot, which is different after each reboot.
func ID() (string, error) {
	if id := os.Getenv(EnvID); id != "" {
		return id, nil
	}
	text, err := os.ReadFile(idFile)
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("read boot id: %s is empty", idFile)
	}
	return id, nil
}

// Now is the time since the machine booted, sleep included. It never jumps.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// The call fails only for an unknown clock: the kernel is older than
		// anything we can run on.
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}
