package child

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityNumbers are those that a component of a node may be given.
var capabilityNumbers = map[string]uintptr{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	"CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID, "CAP_KILL": unix.CAP_KILL, "CAP_SETGID": unix.CAP_SETGID,
	"CAP_SETUID": unix.CAP_SETUID, "CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_LINUX_IMMUTABLE": unix.CAP_LINUX_IMMUTABLE,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
	"CAP_IPC_LOCK": unix.CAP_IPC_LOCK, "CAP_IPC_OWNER": unix.CAP_IPC_OWNER, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE,
	"CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_NICE": unix.CAP_SYS_NICE, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	"CAP_SYS_TIME": unix.CAP_SYS_TIME, "CAP_MKNOD": unix.CAP_MKNOD, "CAP_LEASE": unix.CAP_LEASE, "CAP_SETFCAP": unix.CAP_SETFCAP,
	"CAP_SYSLOG": unix.CAP_SYSLOG, "CAP_MAC_ADMIN": unix.CAP_MAC_ADMIN, "CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_BPF": unix.CAP_BPF,
}

// capabilities splits names into the numbers that can be given and the names
// that cannot, because this process does not have them itself.
func capabilities(names []string, own uint64) (numbers []uintptr, missing []string) {
	for _, name := range names {
		n, known := capabilityNumbers[name]
		if !known || own&(1<<n) == 0 {
			missing = append(missing, name)
			continue
		}
		if !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	return numbers, missing
}

// CheckCapabilities names those of names that do not exist.
func CheckCapabilities(names []string) error {
	var unknown []string
	for _, name := range names {
		if _, ok := capabilityNumbers[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s cannot be given", strings.Join(unknown, ", "))
	}
	return nil
}

// ownCapabilities is the permitted set of this process.
func ownCapabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("read own capabilities: %w", err)
	}
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32, nil
}

// reduce gives up, for the calling thread and all that it makes, every capability
// but those kept.
func reduce(kept []uintptr) error {
	for n := uintptr(0); n <= unix.CAP_LAST_CAP; n++ {
		if slices.Contains(kept, n) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // the kernel does not know it
			return fmt.Errorf("give up capability %d: %w", n, err)
		}
	}
	return nil
}
