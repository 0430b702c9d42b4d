package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// DefaultMaxFiles is how many files one owner may leave with a Manager.
const DefaultMaxFiles = 4096

// maxNames bounds the names of one owner together, in bytes with separators: they
// are passed in one variable, of which the kernel takes 128 KiB at most.
const maxNames = 120 << 10

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

// Stored is one file that is kept. It is a bare number: as an os.File it would be
// watched by the runtime, and every byte in a pipe would wake this process.
type Stored struct {
	Owner, Name string
	// FD is the manager's. It is close-on-exec.
	FD int
}

// Env returns the variables for a child that finds files of these names from
// number FirstFD on, and a Manager at socket. Empty ones are left out.
func Env(socket string, names []string) []string {
	var env []string
	if len(names) > 0 {
		env = append(env, EnvFDs+"="+strconv.Itoa(len(names)), EnvNames+"="+strings.Join(names, ":"))
	}
	if socket != "" {
		env = append(env, EnvNotify+"="+socket)
	}
	return env
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

	busy sync.Mutex // held while one message is read and obeyed
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
		inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, inner)
}

// Freeze returns when no message is being obeyed, and none is read from then on
// until thaw is called. All and SocketFile then tell everything, as before a
// re-exec.
func (m *Manager) Freeze() (thaw func()) {
	m.busy.Lock()
	return m.busy.Unlock
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
