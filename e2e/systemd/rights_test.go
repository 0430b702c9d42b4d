//go:build systemd

package systemd_test

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// numbers of the capabilities that the graph gives.
var numbers = map[string]uint{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_KILL": unix.CAP_KILL,
	"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID, "CAP_MAC_ADMIN": unix.CAP_MAC_ADMIN, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
}

// mask is how /proc shows a set of capabilities. A name that is not known gives a
// mask that nothing has.
func mask(names []string) string {
	var set uint64
	for _, name := range names {
		number, known := numbers[name]
		if !known {
			return "unknown " + name
		}
		set |= 1 << number
	}
	return fmt.Sprintf("%016x", set)
}

// field is one line of /proc/<pid>/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
