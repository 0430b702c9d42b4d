package process

import (
	"errors"
	"fmt"
	"net"
	"os"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

// Kept are the two things of the frame that stay open when a process replaces its
// program by another (execve) and goes on as the same process: nobody else takes
// its place meanwhile, and callers wait instead of being refused.
type Kept struct {
	// Apart says that this program is only tried, beside the process whose program it
	// may become: it claims no folder and no lock, and Socket is one of its own.
	Apart bool
	// Lock is the lock on the data folder. Nil where it is Apart.
	Lock *os.File
	// Socket is the listening socket. Nil means that it was not in its place: the
	// next program makes one.
	Socket *os.File
}

// Keep returns them for the next program. The lock stays this process's; the
// socket is a copy, which the caller closes if it goes on after all. It returns
// Unavailable while the process has not begun to run.
func (p *Process) Keep() (Kept, error) {
	l, ok := p.listener.(interface{ File() (*os.File, error) })
	if !ok || p.lock == nil {
		return Kept{}, fault.New(fault.Unavailable, "keep socket of %s: it is not served", p.Name)
	}
	if !rpc.InPlace(p.listener) {
		return Kept{Lock: p.lock}, nil
	}
	socket, err := l.File()
	if err != nil {
		return Kept{}, fmt.Errorf("keep socket of %s: %w", p.Name, err)
	}
	return Kept{Lock: p.lock, Socket: socket}, nil
}

// listen takes over the socket that others reach by path.
func (k *Kept) listen(path string) (net.Listener, error) {
	l, err := net.FileListener(k.Socket) // on a copy
	if err := errors.Join(err, k.Socket.Close()); err != nil {
		return nil, fmt.Errorf("take over socket %s: %w", path, err)
	}
	if k.Apart { // whoever made it has its place, and takes it away
		return rpc.Adopt(l, l.Addr().String()), nil
	}
	return rpc.Regain(l, path), nil
}
