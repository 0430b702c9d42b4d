package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

// Lack is one thing that this machine has not got, and the command that helps.
type Lack struct {
	// What is missing.
	What string
	// Remedy is a command, or what to do.
	Remedy string
}

// host is what the checks look at.
type host struct {
	read func(path string) (string, error)
	stat func(path string) error
	nft  func() error
}

func thisHost() host {
	return host{
		read: func(path string) (string, error) {
			data, err := os.ReadFile(path)
			return string(data), err
		},
		stat: func(path string) error {
			_, err := os.Stat(path)
			return err
		},
		nft: func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			_, err = c.ListTables()
			return err
		},
	}
}

// CheckPrerequisites returns nil, or everything that this machine lacks at once.
func (m *Machine) CheckPrerequisites() error {
	lacks := kernelLacks(thisHost())
	lacks = append(lacks, m.toolLacks(thisHost())...)
	if err := rpc.CheckSocketPath(m.Paths.Socket("clusteraccess")); err != nil {
		lacks = append(lacks, Lack{err.Error(), "choose a shorter --root"})
	}
	if len(lacks) == 0 {
		return nil
	}
	lines := make([]string, len(lacks))
	for i, l := range lacks {
		lines[i] = fmt.Sprintf("  %s\n    %s", l.What, l.Remedy)
	}
	return fault.New(fault.Unavailable, "this machine lacks what Staddle needs:\n%s", strings.Join(lines, "\n"))
}

// KernelLacks returns what the kernel of this machine lacks, nil if nothing.
func KernelLacks() []Lack { return kernelLacks(thisHost()) }

// CgroupLayout names how this machine has its control groups, for people.
func CgroupLayout() string {
	h := thisHost()
	switch {
	case h.stat("/sys/fs/cgroup/cgroup.controllers") == nil:
		return "version 2"
	case h.stat("/sys/fs/cgroup/unified/cgroup.controllers") == nil:
		return "version 1, hybrid"
	}
	return "version 1"
}

// kernelLacks checks the features of the kernel that nothing works without.
func kernelLacks(h host) []Lack {
	var lacks []Lack
	filesystems, err := h.read("/proc/filesystems")
	if err != nil || !strings.Contains(filesystems, "\toverlay\n") {
		if h.stat("/sys/module/overlay") != nil {
			lacks = append(lacks, Lack{"overlay filesystem (root filesystems of containers)", "modprobe overlay"})
		}
	}
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		if h.stat("/proc/self/ns/"+ns) != nil {
			lacks = append(lacks, Lack{ns + " namespaces", "use a kernel with CONFIG_NAMESPACES"})
		}
	}
	if err := h.nft(); err != nil {
		lacks = append(lacks, Lack{fmt.Sprintf("nftables (network of sandboxes): %v", err), "modprobe nf_tables"})
	}
	if h.stat("/proc/sys/kernel/seccomp") != nil {
		lacks = append(lacks, Lack{"seccomp (filter of system calls)", "use a kernel with CONFIG_SECCOMP_FILTER"})
	}
	return append(lacks, cgroupLacks(h)...)
}

// cgroupLacks accepts both layouts: one tree (v2), or a tree per controller.
func cgroupLacks(h host) []Lack {
	if unified, err := h.read("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		var lacks []Lack
		for _, c := range []string{"cpu", "memory", "pids"} {
			if !strings.Contains(" "+strings.TrimSpace(unified)+" ", " "+c+" ") {
				lacks = append(lacks, Lack{"cgroup controller " + c, "boot with cgroup_enable=" + c})
			}
		}
		return lacks
	}
	var lacks []Lack
	for _, c := range []string{"cpu", "memory", "pids"} {
		if h.stat("/sys/fs/cgroup/"+c) != nil {
			lacks = append(lacks, Lack{"cgroup controller " + c + " below /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup"})
		}
	}
	return lacks
}

func (m *Machine) toolLacks(h host) []Lack {
	var missing []string
	for _, name := range binaries {
		if err := h.stat(filepath.Join(m.Source, name)); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []Lack{{fmt.Sprintf("%s beside staddle in %s", strings.Join(missing, ", "), m.Source), "make build"}}
}
