// Package inroot opens files below the root of a container, of which the one who wrote
// them is not trusted.
//
// No path and no link leads out of the root: the kernel itself resolves each step within
// it (openat2 with RESOLVE_IN_ROOT), also while somebody changes links meanwhile. It must
// never open a path by its name on the node. It is used by what looks into containers
// that run.
package inroot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// Root is the root folder of a container.
type Root struct{ dir *os.File }

// OfProcess opens the root of a process. The caller makes sure afterwards that the
// process was still the one that is meant, and closes the root.
func OfProcess(pid int) (*Root, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/root"
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &Root{os.NewFile(uintptr(fd), path)}, nil
}

// Close closes the root.
func (r *Root) Close() error { return r.dir.Close() }

// open opens a path within the root. The kernel gives up with EAGAIN when something is
// renamed meanwhile; that is tried again a few times.
func (r *Root) open(path string, flags uint64) (*os.File, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	const tries = 32
	for try := 1; ; try++ {
		fd, err := unix.Openat2(int(r.dir.Fd()), path, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case try < tries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)):
			continue
		}
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
}

// ReadFile reads a regular file, following links within the root. One that is not there
// is empty; one that is larger than most is cut. Anything but a regular file is Invalid, and
// is not opened: opening a pipe or a device may wait, or do something.
func (r *Root) ReadFile(path string, most int64) (content []byte, err error) {
	place, err := r.open(path, unix.O_PATH)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	info, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "read %s: it is no regular file", path)
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(place.Fd()))) // the very file that was looked at
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, most))
}

// Find finds what is at a path, following links within the root. It is a file or folder in
// place, opened for nothing but to be looked at. fs.ErrNotExist if nothing is there.
func (r *Root) Find(path string) (*os.File, error) { return r.open(path, unix.O_PATH) }
