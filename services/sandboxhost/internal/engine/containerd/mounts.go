package containerd

import (
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
)

// allMounts lists what a container sees beside its root filesystem.
func allMounts(in input) ([]specs.Mount, error) {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		{Destination: "/dev/shm", Type: "bind", Source: in.shm, Options: []string{"rbind", "rprivate", "rw", "nosuid", "noexec", "nodev"}},
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		list = append(list, specs.Mount{
			Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(in.files, name),
			Options: []string{"rbind", "rprivate", "ro", "nosuid", "noexec", "nodev"},
		})
	}
	for _, d := range in.container.GetDisks() {
		source, ok := in.disks[d.GetDisk()]
		if !ok {
			return nil, fault.WithReason(fault.New(fault.Unavailable,
				"create container %s: disk %s is not granted yet", in.id, d.GetDisk()), "WAITING_FOR_DISK")
		}
		access := "rw"
		if d.GetReadOnly() {
			access = "ro"
		}
		list = append(list, specs.Mount{
			Destination: filepath.Join("/", d.GetPath()), Type: "bind", Source: source,
			Options: []string{"rbind", "rprivate", access, "nosuid", "nodev"},
		})
	}
	return list, nil
}
