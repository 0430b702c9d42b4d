package fdstore

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// managerWait bounds how long a message, or the answer to a barrier, may take.
const managerWait = 5 * time.Second

// Available reports whether somebody keeps files for this process.
func (s *Store) Available() bool { return s.socket != "" }

// Notify tells the manager a state, such as "READY=1" or "STATUS=waiting for
// storage"; several are separated by line feeds. Without a manager it does
// nothing.
func (s *Store) Notify(state string) error {
	if !s.Available() {
		return nil
	}
	return s.send(state)
}

// Push hands a copy of f to the manager under that name; f stays the caller's and
// keeps its mode. When Push returns nil the manager has read the message, so that
// the file outlives this process even if it dies now. It returns
// fault.Unavailable if there is no manager.
//
// The protocol has no answer: that a manager refused the file, for its number or
// because it keeps none, is seen only in the manager's log and after the restart.
func (s *Store) Push(name string, f *os.File) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if !s.Available() {
		return fault.New(fault.Unavailable, "store file %s: nobody keeps files for this process", name)
	}
	// Without FDPOLL=0 systemd drops a pipe as soon as its writer is gone, with
	// all that is still in it.
	if err := s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, f); err != nil {
		return fmt.Errorf("store file %s: %w", name, err)
	}
	if err := s.barrier(); err != nil {
		return fmt.Errorf("store file %s: %w", name, err)
	}
	return nil
}

// Remove tells the manager to drop the file of that name. To remove a missing
// one, or without a manager, does nothing.
func (s *Store) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := s.Notify("FDSTOREREMOVE=1\nFDNAME=" + name); err != nil {
		return fmt.Errorf("drop stored file %s: %w", name, err)
	}
	return nil
}

// barrier returns when the manager has read all that was sent before: it closes
// the end of a pipe that comes with the message.
func (s *Store) barrier() error {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make barrier: %w", err)
	}
	err = s.send("BARRIER=1", theirs)
	if err := errors.Join(err, theirs.Close()); err != nil {
		return errors.Join(err, ours.Close())
	}
	err = ours.SetReadDeadline(time.Now().Add(managerWait))
	if err == nil {
		_, err = io.Copy(io.Discard, ours)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.New(fault.Unavailable, "manager has not read it for %s", managerWait)
	}
	return errors.Join(err, ours.Close())
}

// send sends one message, with files. A new socket each time costs little, and
// finds a manager that has made its own anew.
func (s *Store) send(text string, files ...*os.File) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: s.socket})
	if err != nil {
		return fault.New(fault.Unavailable, "notify manager: %w", err)
	}
	var rights []byte
	err = withFDs(files, nil, func(fds []int) error {
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		if err := conn.SetWriteDeadline(time.Now().Add(managerWait)); err != nil {
			return err
		}
		return sendOn(conn, []byte(text), rights)
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		return fault.New(fault.Unavailable, "notify manager: %w", err)
	}
	return nil
}

// sendOn sends one datagram with rights. WriteMsgUnix refuses to on a socket that
// has its peer already.
func sendOn(conn *net.UnixConn, text, rights []byte) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Write(func(fd uintptr) bool {
		inner = unix.Sendmsg(int(fd), text, rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(inner, unix.EAGAIN)
	})
	return errors.Join(err, inner)
}

// withFDs calls fn with the numbers of the files, which stay open meanwhile. It
// does not use File.Fd, which may take a file out of its non-blocking mode.
func withFDs(files []*os.File, fds []int, fn func([]int) error) error {
	if len(files) == 0 {
		return fn(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		inner = withFDs(files[1:], append(fds, int(fd)), fn)
	})
	return errors.Join(err, inner)
}
