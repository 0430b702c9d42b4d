// Package tartree carries files and folders as a tar stream: it packs what is below a
// folder, and unpacks a stream below one.
//
// Neither side trusts the other. What is packed may change meanwhile, and a stream may have
// been made by somebody with bad intent: no name, link or change made meanwhile leads out
// of the folder that the caller opened (os.Root sees to it), nothing but files, folders and links is
// opened or made, and a file that is there is replaced by a whole one or not at all. It must never
// follow a link out, and never open a file by its name outside of such a folder. The command
// line and the sandbox host stand at its two ends.
package tartree

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

const (
	// maxName is how long the name of an entry may be, as the kernel's own bound of a path.
	maxName = 4096
	// maxDepth is how deep folders may be in each other. Two files are open for each.
	maxDepth = 128
	// chunk is how much is moved at a time.
	chunk = 32 << 10
)

// Report says what was done.
type Report struct {
	// Entries is how many files, folders and links were carried.
	Entries uint64
	// Bytes is how much was in the files.
	Bytes uint64
	// Skipped is how many were left out: pipes, sockets and devices, the files of the
	// kernel's own, such as /proc, and links that lead out where those are not wanted.
	Skipped uint64
}

// ofKernel are filesystems whose files are made by the kernel as they are read.
var ofKernel = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
	unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
}

// madeByKernel says whether an open file is on such a filesystem.
func madeByKernel(fd uintptr) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(fd), &st); err != nil {
		return false, err
	}
	return slices.Contains(ofKernel, st.Type), nil
}

// TopOf is the first element of the names of what is packed from a path: its own last
// one, "." for the root and for a path that says so.
func TopOf(at string) string {
	if last := path.Base(at); last != "/" && last != ".." {
		return last
	}
	return "."
}

// cleaned is the name of an entry without what means nothing. One that is absolute, leads
// up, or is too long is Invalid.
func cleaned(name string) (string, error) {
	switch {
	case len(name) > maxName:
		return "", fault.New(fault.Invalid, "a name has %d bytes, and may have %d: %.80q…", len(name), maxName, name)
	case strings.ContainsRune(name, 0), name == "":
		return "", fault.New(fault.Invalid, "the name %.80q is no name of a file", name)
	case path.IsAbs(name), slices.Contains(strings.Split(name, "/"), ".."):
		return "", fault.New(fault.Invalid, "the name %.200q leads out of the folder", name)
	}
	name = path.Clean(name)
	if depth := strings.Count(name, "/"); depth > maxDepth {
		return "", fault.New(fault.Invalid, "the name %.80q… is %d folders deep, and may be %d", name, depth, maxDepth)
	}
	return name, nil
}

// leadsOut says whether a link at a name points to something above a number of folders, which the
// name begins with. It holds only where no folder of the name is a link.
func leadsOut(name, target string, floor int) bool {
	depth := strings.Count(name, "/")
	if path.IsAbs(target) || depth < floor {
		return true
	}
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < floor {
			return true
		}
	}
	return false
}

// exhausted gives a full disk its kind.
func exhausted(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.Exhausted, "%w", err)
	}
	return err
}
