package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

const (
	// MaxPathLength is what the kernel's address structure holds.
	MaxPathLength = 107
	// DefaultSocketMode lets everybody connect: who may call is decided by the
	// credentials of the peer, which say why not.
	DefaultSocketMode os.FileMode = 0o666

	probeTimeout = time.Second
	lockTimeout  = 5 * time.Second
	lockPause    = 5 * time.Millisecond // the kernel offers no wait that ends in time
)

// CheckSocketPath refuses a path that no socket can have.
func CheckSocketPath(path string) error {
	if len(path) > MaxPathLength {
		return fault.New(fault.Invalid, "use socket %s: the path has %d bytes, the system allows %d; choose a shorter --root",
			path, len(path), MaxPathLength)
	}
	return nil
}

// Listen makes a unix socket that is served from the moment it has its name. A
// socket that nobody serves and a dangling link are replaced. A socket with a
// server is Conflict and never touched; anything else at the path is Invalid.
// Close removes the socket only while the path still leads to it.
func Listen(path string, mode os.FileMode) (net.Listener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer unlock()
	if err := clearPath(path); err != nil {
		return nil, err
	}
	l, err := bind(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// lockFile serialises the processes that replace one socket. The file stays: to
// remove a lock file is to have two of them.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	deadline := time.Now().Add(lockTimeout)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // nothing was written; the lock ends with the descriptor
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			return nil, errors.Join(fault.New(fault.Unavailable, "lock %s: %w", path, err), f.Close())
		}
		time.Sleep(lockPause) //nolint:forbidigo // Listen is no call to be cancelled: this ends after lockTimeout
	}
}

// clearPath makes the path free, or says what stands there.
func clearPath(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	switch info.Mode().Type() {
	case os.ModeSocket:
		return clearSocket(path)
	case os.ModeSymlink:
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return fault.New(fault.Invalid, "listen on %s: the path is a link to something that exists; remove it", path)
		}
		return os.Remove(path)
	}
	return fault.New(fault.Invalid, "listen on %s: the path is a %s, not a socket; remove it or choose another --root", path, fileType(info))
}

func fileType(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "folder"
	case info.Mode().IsRegular():
		return "plain file"
	}
	return "special file"
}

// clearSocket removes a socket only on the kernel's word that nobody listens.
func clearSocket(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		pid := peerPID(conn)
		return errors.Join(fault.New(fault.Conflict, "listen on %s: the socket is served by pid %d", path, pid), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fault.New(fault.Conflict, "listen on %s: the socket may be served: %w", path, err)
	}
	return os.Remove(path)
}

func peerPID(conn net.Conn) int {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	peer, err := (&Peers{}).peerOf(uc)
	if err != nil {
		return 0 // unknown: the message says pid 0
	}
	return peer.pid
}

// passingCount keeps the passing names of one process apart.
var passingCount atomic.Int64

// bind makes the socket under another name and moves it into place, so that the
// path never leads to a socket that is not served. The folder is named through a
// descriptor: the passing name must not be longer than the path may be.
func bind(path string, mode os.FileMode) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	passing := fmt.Sprintf("/proc/self/fd/%d/.%d.%d", dir.Fd(), os.Getpid(), passingCount.Add(1))
	if err := os.Remove(passing); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: passing, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	own := &ownSocket{UnixListener: l, path: path, mode: mode}
	if err := own.place(passing); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(passing))
	}
	return own, nil
}

// ownSocket is a listener that knows which file is its own.
type ownSocket struct {
	*net.UnixListener
	path string
	mode os.FileMode
	file fs.FileInfo
}

func (o *ownSocket) place(passing string) error {
	if err := os.Chmod(passing, o.mode); err != nil {
		return err
	}
	if err := os.Rename(passing, o.path); err != nil {
		return err
	}
	info, err := os.Lstat(o.path)
	o.file = info
	return err
}

// Addr is the path that leads to the socket, not the name it was made under.
func (o *ownSocket) Addr() net.Addr { return &net.UnixAddr{Name: o.path, Net: "unix"} }

func (o *ownSocket) inPlace() bool {
	info, err := os.Lstat(o.path)
	return err == nil && os.SameFile(info, o.file)
}

// Close ends the listener and removes its file, unless another has taken the
// place.
func (o *ownSocket) Close() error {
	if !o.inPlace() {
		return o.UnixListener.Close()
	}
	err := os.Remove(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, o.UnixListener.Close())
}

// Adopt returns a listener that was passed to this process, which others reach by
// path: the kernel knows only the name that the socket was made under. Close does
// not remove the path, which belongs to whoever made the socket.
func Adopt(l net.Listener, path string) net.Listener {
	info, err := os.Lstat(path)
	if err != nil {
		info = nil // the path leads nowhere until the maker brings it back
	}
	return &passedSocket{Listener: l, path: path, file: info}
}

// passedSocket is a listener whose file belongs to another process.
type passedSocket struct {
	net.Listener
	path string
	file fs.FileInfo // nil: not known
}

// Addr is the path that leads to the socket.
func (p *passedSocket) Addr() net.Addr { return &net.UnixAddr{Name: p.path, Net: "unix"} }

// inPlace takes any socket at the path for its own where it had none when it was
// passed: only its maker makes one there.
func (p *passedSocket) inPlace() bool {
	info, err := os.Lstat(p.path)
	if err != nil || p.file == nil {
		return err == nil && info.Mode().Type() == os.ModeSocket
	}
	return os.SameFile(info, p.file)
}

// File returns a copy of the listener, where it has one to give.
func (p *passedSocket) File() (*os.File, error) {
	l, ok := p.Listener.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fault.New(fault.Invalid, "copy socket %s: it has no descriptor", p.path)
	}
	return l.File()
}

// Regain returns a listener that this process itself made at path, before it
// replaced its program by another. Unlike one that was passed by somebody else it
// is this process's to mend and to remove.
func Regain(l net.Listener, path string) net.Listener {
	unix, ok := l.(*net.UnixListener)
	info, err := os.Lstat(path)
	if !ok || err != nil {
		return Adopt(l, path)
	}
	unix.SetUnlinkOnClose(false)
	return &ownSocket{UnixListener: unix, path: path, mode: info.Mode().Perm(), file: info}
}
