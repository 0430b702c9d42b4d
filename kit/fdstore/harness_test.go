package fdstore_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fdstore"
)

// manager runs a Manager for the test. The owner of this process is "self"; of
// others, what pids says.
type manager struct {
	*fdstore.Manager
	socket   string
	messages chan fdstore.Message
	log      *lines
}

func newManager(t *testing.T, cfg fdstore.ManagerConfig, owner func(pid int) string) *manager {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "n")
	}
	m := &manager{socket: cfg.Path, messages: make(chan fdstore.Message, 100), log: &lines{ch: make(chan string, 100)}}
	m.Manager = fdstore.NewManager(cfg, fdstore.ManagerDeps{
		Owner: func(pid int, uid uint32) (string, bool) {
			if int(uid) != os.Getuid() {
				t.Errorf("sender has uid %d", uid)
			}
			name := owner(pid)
			return name, name != ""
		},
		Notify: func(msg fdstore.Message) { m.messages <- msg },
		Log:    slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- m.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, m.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func self(pid int) string {
	if pid == os.Getpid() {
		return "self"
	}
	return ""
}

// lines hands on what is logged.
type lines struct{ ch chan string }

func (l *lines) Write(p []byte) (int, error) { l.ch <- string(p); return len(p), nil }

// next waits for one thing from the manager.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came within 20s")
		panic("unreachable")
	}
}

// client returns a store that talks to socket.
func client(t *testing.T, socket string) *fdstore.Store {
	t.Helper()
	for _, key := range []string{fdstore.EnvFDs, fdstore.EnvNames, fdstore.EnvPID} {
		t.Setenv(key, "")
	}
	t.Setenv(fdstore.EnvNotify, socket)
	s := fdstore.New()
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

func names(m *manager, owner string) []string {
	var got []string
	for _, s := range m.All() {
		if s.Owner == owner {
			got = append(got, s.Name)
		}
	}
	return got
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

func w2(t *testing.T) *os.File { _, w := pipe(t); return w }

// send sends a message as any process could.
func send(t *testing.T, socket, text string, files ...*os.File) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	err = unix.Sendmsg(fd, []byte(text), rights, &unix.SockaddrUnix{Name: socket}, 0)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}

// requireEnd requires that nobody has the writing end any more.
func requireEnd(t *testing.T, r *os.File) {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // os promises the very value
		t.Errorf("pipe is still open for writing: %d, %v", n, err)
	}
}
