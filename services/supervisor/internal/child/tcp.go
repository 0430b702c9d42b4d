package child

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// tcp is a listening socket of a component over TCP, which outlives its processes
// as well.
type tcp struct {
	// address says where it is to listen now, as host:port; empty means nowhere.
	address func() string

	at       string // address it was made for
	listener net.Listener
}

// passed returns a copy for a child, or nil if it has no address, or one that
// cannot be listened on: the process then tries by itself, and says why it cannot.
func (t *tcp) passed() (*os.File, error) {
	at := t.address()
	if t.listener != nil && at != t.at {
		if err := t.close(); err != nil {
			return nil, err
		}
	}
	if t.listener == nil && at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", at, err)
		}
		t.listener, t.at = l, at
	}
	return t.copy()
}

// copy returns nil if there is none.
func (t *tcp) copy() (*os.File, error) {
	l, ok := t.listener.(*net.TCPListener)
	if !ok {
		return nil, nil
	}
	return l.File()
}

// begin listens, or takes over the socket.
func (t *tcp) begin(before *ChildHandover) error {
	if before != nil && before.TCP > 0 {
		return t.adopt(os.NewFile(uintptr(before.TCP), "tcp"), before.Address)
	}
	f, err := t.passed()
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	return err
}

// adopt takes the socket from before a re-exec.
func (t *tcp) adopt(f *os.File, at string) error {
	l, err := net.FileListener(f) // on a copy
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("take over socket at %s: %w", at, err)
	}
	t.listener, t.at = l, at
	return nil
}

func (t *tcp) close() error {
	if t.listener == nil {
		return nil
	}
	l := t.listener
	t.listener = nil
	return l.Close()
}
