package bed

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime is how long all threads of a process have run, also those that have
// ended, to the nanosecond.
func ProcessorTime(pid int) (time.Duration, error) {
	const schedulers = 2 // of the clocks that the kernel has of each process, the exact one
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulers), &used); err != nil {
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}
