package child

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fdstore"
)

// standIns are files of the same kinds as those of a handover, which nobody else
// uses: whatever a process does to them, and whoever it gives them to, nothing comes
// of it.
type standIns struct {
	first int // the number of the first
	files []*os.File
	none  *os.File // stands in for all that is only kept open
	err   error
}

// StandIns returns the handover with a stand-in for each file, and these, for a
// process that finds them from number first on. One file may stand in for many, so
// that a node with thousands of stored files needs no more. The caller closes them with
// CloseAll, also after an error.
func (h Handover) StandIns(first int) (Handover, []*os.File, error) {
	s := &standIns{first: first}
	out := Handover{Children: map[string]ChildHandover{}, Owners: h.Owners, Notify: s.add(datagram())}
	for name, c := range h.Children {
		c.Leash = s.instead(c.Leash, s.null)
		c.Socket = s.instead(c.Socket, listening)
		c.TCP = s.instead(c.TCP, listening)
		out.Children[name] = c
	}
	for _, f := range h.Stored {
		out.Stored = append(out.Stored, fdstore.Stored{Owner: f.Owner, Name: f.Name, FD: s.add(s.null())})
	}
	if s.err != nil {
		return out, s.files, fmt.Errorf("make stand-ins: %w", s.err)
	}
	return out, s.files, nil
}

// instead returns the number of a stand-in; 0, which is no file, stays.
func (s *standIns) instead(fd int, of func() (*os.File, error)) int {
	if fd <= 0 {
		return 0
	}
	return s.add(of())
}

func (s *standIns) add(f *os.File, err error) int {
	if err != nil {
		s.err = errors.Join(s.err, err)
		return 0
	}
	s.files = append(s.files, f)
	return s.first + len(s.files) - 1
}

// null stands in for what is only kept open: leashes and stored files.
func (s *standIns) null() (f *os.File, err error) {
	if s.none == nil {
		s.none, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	return s.none, err
}

// CloseAll closes files of which some may be named more than once.
func CloseAll(files []*os.File) error {
	closed := map[*os.File]bool{}
	var errs []error
	for _, f := range files {
		if !closed[f] {
			closed[f] = true
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func listening() (*os.File, error) {
	f, err := bound(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(int(f.Fd()), 1); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), f.Close())
	}
	return f, nil
}

func datagram() (*os.File, error) { return bound(unix.SOCK_DGRAM) }

// bound makes a socket with a name that the kernel chooses, outside the file system.
func bound(kind int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind socket: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "stand-in"), nil
}
