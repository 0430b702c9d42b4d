package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// DefaultMaxFiles is how many files one owner may leave with a Manager.
const DefaultMaxFiles = 4096

// receiveBuffer of the socket: without it the few messages that the kernel
// queues may be held up by one large sender.
const receiveBuffer = 1 << 20

// ManagerConfig says where a Manager listens and what it bounds.
type ManagerConfig struct {
	// Path of the socket, at most 107 bytes. What is there is replaced, so the
	// folder must be the manager's own.
	Path string
	// Mode of the socket; zero means 0666. Who may say anything is decided by the
	// kernel's word on the sender, not by the mode.
	Mode os.FileMode
	// MaxFiles per owner; zero means DefaultMaxFiles.
	MaxFiles int
	// Socket is the socket of the Manager before a re-exec, taken instead of
	// making one. Messages on their way are not lost then. May be nil.
	Socket *os.File
}

// ManagerDeps are what a Manager needs to know from others.
type ManagerDeps struct {
	// Owner says whose process pid is, or false for a stranger, who is ignored.
	Owner func(pid int, uid uint32) (owner string, ok bool)
	// Notify learns what a process said about itself. It must not block. Nil
	// means nobody.
	Notify func(Message)
	// Log gets a warning when a file is refused. Nil means nowhere.
	Log *slog.Logger
}

// Stored is one file that is kept.
type Stored struct {
	Owner, Name string
	File        *os.File // the manager's; do not close it
}

// Manager keeps files for processes that come and go. A new file of the same
// owner and name takes the place of the old one.
type Manager struct {
	cfg  ManagerConfig
	deps ManagerDeps

	mu     sync.Mutex          // guards all below
	stored map[string][]Stored // by owner, oldest first
	conn   *net.UnixConn       // while Run runs
	closed bool
}

// NewManager returns a Manager that keeps nothing yet. Run makes it listen.
func NewManager(cfg ManagerConfig, deps ManagerDeps) *Manager {
	if cfg.Mode == 0 {
		cfg.Mode = 0o666
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = DefaultMaxFiles
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Notify == nil {
		deps.Notify = func(Message) {}
	}
	return &Manager{cfg: cfg, deps: deps, stored: make(map[string][]Stored)}
}

// Run listens until ctx ends. The files stay open after it returns: until Close,
// or over a re-exec.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	conn, err := m.listen(ctx)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", m.cfg.Path, err)
	}
	m.mu.Lock()
	m.conn = conn
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		// Ends the read below; the socket is closed after it.
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	ready()
	for {
		err := m.serveOne(conn)
		if ctx.Err() != nil {
			err = nil
		}
		if err != nil || ctx.Err() != nil {
			m.mu.Lock()
			m.conn = nil
			m.mu.Unlock()
			return errors.Join(err, conn.Close())
		}
	}
}

// listen makes the socket, or takes the one from before a re-exec.
func (m *Manager) listen(ctx context.Context) (*net.UnixConn, error) {
	if m.cfg.Socket != nil {
		pc, err := net.FilePacketConn(m.cfg.Socket) // on a copy
		if err := errors.Join(err, m.cfg.Socket.Close()); err != nil {
			return nil, err
		}
		conn, ok := pc.(*net.UnixConn)
		if !ok {
			return nil, errors.Join(fault.New(fault.Invalid, "passed file is no unix socket"), pc.Close())
		}
		return conn, nil
	}
	if err := os.Remove(m.cfg.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lc := net.ListenConfig{Control: prepare}
	pc, err := lc.ListenPacket(ctx, "unixgram", m.cfg.Path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(m.cfg.Path, m.cfg.Mode); err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	return pc.(*net.UnixConn), nil
}

// prepare makes the kernel name the sender, from the first message on.
func prepare(_, _ string, c syscall.RawConn) error {
	var inner error
	err := c.Control(func(fd uintptr) {
		inner = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer))
	})
	return errors.Join(err, inner)
}

// SocketFile returns a copy of the socket while Run runs, for the Socket of the
// Manager after a re-exec. The caller closes it.
func (m *Manager) SocketFile() (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return nil, fault.New(fault.Unavailable, "copy socket %s: not listening", m.cfg.Path)
	}
	return m.conn.File()
}

// Files lists what owner left, oldest first; the files stay the manager's.
func (m *Manager) Files(owner string) []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.stored[owner])
}

// All lists what everybody left.
func (m *Manager) All() []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Stored
	for _, files := range m.stored {
		all = append(all, files...)
	}
	return all
}

// Put keeps a file for owner as if its process had sent it. The Manager owns f
// from here on, also when it refuses: fault.Invalid for a wrong name,
// fault.Exhausted if the owner has too many, fault.Unavailable after Close.
func (m *Manager) Put(owner, name string, f *os.File) error {
	old, err := m.put(Stored{owner, name, f})
	if err != nil {
		return errors.Join(fmt.Errorf("keep file %s of %s: %w", name, owner, err), f.Close())
	}
	if old != nil {
		return old.Close()
	}
	return nil
}

// put returns the file whose place the new one took, if any.
func (m *Manager) put(s Stored) (*os.File, error) {
	if err := CheckName(s.Name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fault.New(fault.Unavailable, "store is closed")
	}
	files := m.stored[s.Owner]
	if i := slices.IndexFunc(files, func(have Stored) bool { return have.Name == s.Name }); i >= 0 {
		old := files[i].File
		files[i] = s
		return old, nil
	}
	if len(files) >= m.cfg.MaxFiles {
		return nil, fault.New(fault.Exhausted, "%d files are kept already", len(files))
	}
	m.stored[s.Owner] = append(files, s)
	return nil, nil
}

// Remove drops the file of that name; a missing one is none to drop.
func (m *Manager) Remove(owner, name string) error {
	return m.drop(owner, func(s Stored) bool { return s.Name == name })
}

// Forget drops all that owner left.
func (m *Manager) Forget(owner string) error {
	return m.drop(owner, func(Stored) bool { return true })
}

// Close drops everything, and refuses all that comes later.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	var errs []error
	for _, s := range m.All() {
		errs = append(errs, m.Remove(s.Owner, s.Name))
	}
	return errors.Join(errs...)
}

func (m *Manager) drop(owner string, which func(Stored) bool) error {
	m.mu.Lock()
	var dropped []Stored
	kept := slices.DeleteFunc(slices.Clone(m.stored[owner]), func(s Stored) bool {
		if which(s) {
			dropped = append(dropped, s)
			return true
		}
		return false
	})
	m.stored[owner] = kept
	if len(kept) == 0 {
		delete(m.stored, owner)
	}
	m.mu.Unlock()
	var errs []error
	for _, s := range dropped {
		errs = append(errs, s.File.Close())
	}
	return errors.Join(errs...)
}
