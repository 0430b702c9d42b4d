package containerd

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
)

// defaultTmpfs is the size of a folder in memory where the spec says none.
const defaultTmpfs = 64 << 20

// allMounts lists what a container sees beside its root filesystem, the outer
// before the inner. What the spec mounts takes the place of what every container
// has there.
func allMounts(in input) ([]specs.Mount, error) {
	asked, err := diskMounts(in)
	if err != nil {
		return nil, err
	}
	asked = slices.Concat(asked, memoryMounts(in), scratchMounts(in), hostMounts(in), fileMounts(in), secretMounts(in), initMounts(in))
	list := slices.DeleteFunc(commonMounts(in), func(m specs.Mount) bool {
		return slices.ContainsFunc(asked, func(a specs.Mount) bool { return a.Destination == m.Destination })
	})
	list = append(list, asked...)
	depth := func(m specs.Mount) int { return strings.Count(m.Destination, "/") }
	slices.SortStableFunc(list, func(a, b specs.Mount) int { return depth(a) - depth(b) })
	return list, nil
}

// commonMounts are those of every container.
func commonMounts(in input) []specs.Mount {
	access := "ro" // to what belongs to the kernel
	if in.container.GetSecurity().GetPrivileged() {
		access = "rw"
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
		{Destination: "/dev/shm", Type: "bind", Source: in.places.shm, Options: []string{"rbind", "rprivate", "rw", "nosuid", "noexec", "nodev"}},
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		list = append(list, specs.Mount{
			Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(in.places.etc, name),
			Options: []string{"rbind", "rprivate", "ro", "nosuid", "noexec", "nodev"},
		})
	}
	return list
}

func diskMounts(in input) ([]specs.Mount, error) {
	var list []specs.Mount
	for _, d := range in.container.GetDisks() {
		source, ok := in.disks[d.GetDisk()]
		if !ok {
			return nil, fault.WithReason(fault.New(fault.Unavailable,
				"create container %s: disk %s is not granted yet", in.id, d.GetDisk()), "WAITING_FOR_DISK")
		}
		list = append(list, in.mapped(bound(source, d.GetPath(), d.GetReadOnly())))
	}
	return list, nil
}

// bound is a folder or file of the node. Its devices and the marks of its programs
// that give rights mean nothing inside.
func bound(source, path string, readOnly bool) specs.Mount {
	access := "rw"
	if readOnly {
		access = "ro"
	}
	return specs.Mount{
		Destination: filepath.Join("/", path), Type: "bind", Source: source,
		Options: []string{"rbind", "rprivate", access, "nosuid", "nodev"},
	}
}

func memoryMounts(in input) []specs.Mount {
	var list []specs.Mount
	for _, m := range in.container.GetTmpfs() {
		size, mode := int64(defaultTmpfs), "1777"
		if m.SizeLimitBytes != nil {
			size = m.GetSizeLimitBytes()
		}
		if m.GetMode() != "" {
			mode = m.GetMode()
		}
		options := []string{"nosuid", "nodev", "size=" + strconv.FormatInt(size, 10), "mode=" + mode}
		if !m.GetExecutable() {
			options = append(options, "noexec")
		}
		list = append(list, specs.Mount{Destination: m.GetPath(), Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	return list
}

func scratchMounts(in input) []specs.Mount {
	var list []specs.Mount
	for _, m := range in.container.GetScratch() {
		list = append(list, in.mapped(bound(filepath.Join(in.places.scratch, m.GetVolume()), m.GetPath(), m.GetReadOnly())))
	}
	return list
}

func hostMounts(in input) []specs.Mount {
	var list []specs.Mount
	for i, m := range in.container.GetHostMounts() {
		mount := in.mapped(bound(filepath.Join(in.places.binds, strconv.Itoa(i)), m.GetPath(), m.GetReadOnly()))
		if m.GetReadOnly() { // with all that is mounted in it
			mount.Options = append(mount.Options, "rro")
		}
		list = append(list, mount)
	}
	return list
}

func fileMounts(in input) []specs.Mount {
	var list []specs.Mount
	for i, f := range in.container.GetFiles() {
		list = append(list, bound(filepath.Join(in.places.files, strconv.Itoa(i)), f.GetPath(), true))
	}
	return list
}
