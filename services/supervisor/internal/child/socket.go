package child

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/rpc"
)

// socket is the listening socket of one component. It is made once and outlives
// the component's processes, so that a restart refuses no call. Its file has a
// second name: when the first is lost, it leads to the same socket again, and the
// process that serves it need not know.
type socket struct {
	path     string
	spares   []string // folders for the second name, the best first
	uid, gid int      // of the file

	mu       sync.Mutex // guards all below
	listener net.Listener
	file     inode
	spare    string // empty: there is no second name
}

// inode is the identity of a file for as long as it has a name or is open.
type inode struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func inodeOf(path string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return inode{}, err
	}
	return inode{Dev: st.Dev, Ino: st.Ino}, nil
}

// passed returns a copy of the socket for a child. Where the path does not lead
// to it any more and cannot be brought back it is made anew first.
func (s *socket) passed() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.mendLocked(); err != nil {
		return nil, err
	}
	return s.copyLocked()
}

// handOver returns a copy for the next program, and the file; none if there is
// no socket.
func (s *socket) handOver() (*os.File, inode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil, inode{}, nil
	}
	f, err := s.copyLocked()
	return f, s.file, err
}

func (s *socket) copyLocked() (*os.File, error) {
	l, ok := s.listener.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("copy socket %s: it has no descriptor", s.path)
	}
	return l.File()
}

// mend has the path lead to the socket again. Where both names are lost the
// socket is made anew, and a process that serves the old one is reached by nobody:
// it must be started again.
func (s *socket) mend() (anew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mendLocked()
}

func (s *socket) mendLocked() (anew bool, err error) {
	if s.listener == nil {
		return true, s.listenLocked()
	}
	here, spared := s.is(s.path), s.is(s.spare)
	switch {
	case here && !spared:
		s.spareLocked()
	case !here && spared:
		return false, rpc.Relink(s.path, s.spare)
	case !here:
		return true, s.listenLocked()
	}
	return false, nil
}

func (s *socket) inPlace() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener != nil && s.is(s.path)
}

func (s *socket) is(path string) bool {
	file, err := inodeOf(path)
	return err == nil && file == s.file
}

func (s *socket) listenLocked() error {
	if err := s.closeLocked(); err != nil {
		return err
	}
	l, err := rpc.Listen(s.path, rpc.DefaultSocketMode)
	if err != nil {
		return err
	}
	err = os.Lchown(s.path, s.uid, s.gid)
	file, statErr := inodeOf(s.path)
	if err := errors.Join(err, statErr); err != nil {
		return errors.Join(fmt.Errorf("listen on %s: %w", s.path, err), l.Close())
	}
	s.listener, s.file = l, file
	s.spareLocked()
	return nil
}

// begin makes the socket, or takes it over.
func (s *socket) begin(before *ChildHandover) error {
	if before != nil && before.Socket > 0 {
		return s.adopt(os.NewFile(uintptr(before.Socket), "socket"), before.File)
	}
	_, err := s.mend()
	return err
}

// adopt takes the socket from before a re-exec, with the file that it had.
func (s *socket) adopt(f *os.File, file inode) error {
	l, err := net.FileListener(f) // on a copy
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("take over socket %s: %w", s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.file = l, file
	for _, name := range s.spareNames() {
		if s.is(name) {
			s.spare = name
		}
	}
	return nil
}

func (s *socket) spareNames() []string {
	var names []string
	for _, dir := range s.spares {
		names = append(names, filepath.Join(dir, filepath.Base(s.path)))
	}
	return names
}

// spareLocked gives the socket its second name, in the first folder that can have
// it. Without one it is made anew when it is lost.
func (s *socket) spareLocked() {
	s.spare = ""
	for _, name := range s.spareNames() {
		if rpc.Spare(s.path, name) == nil {
			s.spare = name
			return
		}
	}
}

// close ends the socket and removes its names, if they still lead to it.
func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closeLocked()
}

func (s *socket) closeLocked() error {
	if s.listener == nil {
		return nil
	}
	l := s.listener
	s.listener = nil
	var errs []error
	for _, name := range []string{s.spare, s.path} {
		if s.is(name) {
			errs = append(errs, os.Remove(name))
		}
	}
	return errors.Join(append(errs, l.Close())...)
}
