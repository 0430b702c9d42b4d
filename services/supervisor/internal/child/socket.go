package child

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"staddle.internal/kit/rpc"
)

// socket is the listening socket of one component. It is made once and outlives
// the component's processes, so that a restart refuses no call.
type socket struct {
	path     string
	listener net.Listener
	file     fs.FileInfo
}

// passed returns a copy of the socket for a child. Where the path does not lead
// to it any more, as a cleaner or the child itself has replaced it, it is made
// anew first.
func (s *socket) passed() (*os.File, error) {
	if s.listener == nil || !s.inPlace() {
		if err := s.listen(); err != nil {
			return nil, err
		}
	}
	l, ok := s.listener.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("copy socket %s: it has no descriptor", s.path)
	}
	return l.File()
}

func (s *socket) inPlace() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.file)
}

func (s *socket) listen() error {
	if err := s.close(); err != nil {
		return err
	}
	l, err := rpc.Listen(s.path, rpc.DefaultSocketMode)
	if err != nil {
		return err
	}
	info, err := os.Lstat(s.path)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on %s: %w", s.path, err), l.Close())
	}
	s.listener, s.file = l, info
	return nil
}

// close ends the socket and removes its path, if that still leads to it.
func (s *socket) close() error {
	if s.listener == nil {
		return nil
	}
	l := s.listener
	s.listener = nil
	return l.Close()
}
