package inlet

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stage is a pipe of ours, in which bytes are counted before they go on.
type stage struct{ read, write *os.File }

// newStage makes one, or goes on with one of which the reading end was kept.
func newStage(read *os.File) (*stage, error) {
	if read == nil {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		return &stage{read, write}, nil
	}
	var write *os.File
	err := control(read, func(fd int) (err error) {
		write, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open kept pipe: %w", err), read.Close())
	}
	return &stage{read, write}, nil
}

// filled is how many bytes are in it.
func (s *stage) filled() (int, error) {
	var n int
	err := control(s.read, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look into pipe: %w", err)
	}
	return n, nil
}

// fill puts as many bytes into it, which is empty, as go in at once.
func (s *stage) fill(b []byte) (int, error) {
	var n int
	err := control(s.write, func(fd int) (err error) {
		n, err = unix.Write(fd, b)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write to pipe: %w", err)
	}
	return n, nil
}

// move moves bytes from it into a pipe, at most most of them, and waits while there is no room. EPIPE:
// nobody reads that.
func (s *stage) move(to *os.File, most int) error {
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var moveErr error
	err = raw.Write(func(out uintptr) bool {
		moveErr = control(s.read, func(in int) error {
			_, err := unix.Splice(in, nil, int(out), nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			return err
		})
		return !errors.Is(moveErr, unix.EAGAIN)
	})
	return errors.Join(err, moveErr)
}

// drop throws bytes away.
func (s *stage) drop(n int) error {
	_, err := io.CopyN(io.Discard, s.read, int64(n))
	return err
}

// control runs fn with the number of an open file, again while a signal interrupts it.
func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	err = raw.Control(func(fd uintptr) {
		for fnErr = fn(int(fd)); errors.Is(fnErr, unix.EINTR); {
			fnErr = fn(int(fd))
		}
	})
	return errors.Join(err, fnErr)
}
