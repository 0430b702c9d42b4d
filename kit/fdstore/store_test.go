package fdstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
)

// envChild makes the test binary play a process whose files outlive it.
const envChild = "FDSTORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(envChild); path != "" {
		live(path)
	}
	os.Exit(m.Run())
}

// live is one life of the child: it reads one line of the pipe at path and of its
// listener, and waits to be killed. In its first life it opens the pipe and stores
// it; later it must find it.
func live(path string) {
	must := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	s := fdstore.Inherited()
	must(s.Err())
	for _, key := range []string{fdstore.EnvFDs, fdstore.EnvNames, fdstore.EnvNotify} {
		if _, set := os.LookupEnv(key); set {
			must(fmt.Errorf("%s is still set", key))
		}
	}
	l, ok := s.Listener("child.sock")
	if !ok {
		must(errors.New("no listener"))
	}
	pipe := s.Take("log-")["log-1"]
	found := pipe != nil
	if !found {
		var err error
		pipe, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		must(err)
		must(s.Push("log-1", pipe))
	}
	must(pipe.SetReadDeadline(time.Now().Add(20 * time.Second))) // works only if it is still non-blocking
	must(s.Notify("READY=1\nSTATUS=found " + fmt.Sprint(found)))
	conn, err := l.Accept()
	must(err)
	must(conn.Close())
	buf := make([]byte, 2)
	_, err = io.ReadFull(pipe, buf)
	must(err)
	fmt.Printf("read %q\n", buf)
	select {}
}

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

func TestPush_IsKeptWhenItReturns(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, self)
	s := client(t, m.socket)
	r, w := pipe(t)
	if err := s.Push("log-a", r); err != nil {
		t.Fatal(err)
	}
	if got := names(m, "self"); !slices.Equal(got, []string{"log-a"}) {
		t.Fatalf("kept %q", got)
	}
	if _, err := w.WriteString("hi"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	copies, err := m.Open("self")
	if err != nil || len(copies) != 1 || copies[0].Name() != "log-a" {
		t.Fatalf("Open = %v, %v", copies, err)
	}
	got, err := io.ReadAll(copies[0])
	if err := errors.Join(err, copies[0].Close()); err != nil || string(got) != "hi" {
		t.Errorf("kept pipe has %q, %v", got, err)
	}
	if err := s.Remove("log-a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Push("log-b", w2(t)); err != nil { // also waits for the removal
		t.Fatal(err)
	}
	if got := names(m, "self"); !slices.Equal(got, []string{"log-b"}) {
		t.Errorf("kept %q after the removal", got)
	}
}

func w2(t *testing.T) *os.File { _, w := pipe(t); return w }

func TestPush_SameNameReplaces(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, self)
	s := client(t, m.socket)
	r1, w1 := pipe(t)
	r2, _ := pipe(t)
	if err := errors.Join(s.Push("a", r1), r1.Close(), s.Push("a", r2)); err != nil {
		t.Fatal(err)
	}
	if got := names(m, "self"); len(got) != 1 {
		t.Errorf("kept %q", got)
	}
	if _, err := w1.WriteString("x"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the replaced pipe is still open: %v", err)
	}
}

func TestManager_ClosesWhatItRefuses(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{MaxFiles: 1}, self)
	s := client(t, m.socket)
	if err := s.Push("one", w2(t)); err != nil {
		t.Fatal(err)
	}
	r, w := pipe(t)
	tests := []struct{ name, text, want string }{
		{"one too many", "FDSTORE=1\nFDNAME=two", "1 files are kept already"},
		{"bad name", "FDSTORE=1\nFDNAME=a:b", "contains"},
		{"nonsense", "hello", "no ="},
		{"too long", "STATUS=" + strings.Repeat("x", 9000), "longer than"},
	}
	for _, tt := range tests {
		send(t, m.socket, tt.text, w)
		if line := next(t, m.log.ch); !strings.Contains(line, tt.want) {
			t.Errorf("%s: log says %q, want %q", tt.name, line, tt.want)
		}
	}
	send(t, m.socket, "READY=1", w) // a file that nobody asked for
	next(t, m.messages)
	send(t, m.socket, "FDSTORE=1\nFDNAME=three", w, w)
	if line := next(t, m.log.ch); !strings.Contains(line, "2 files for one name") {
		t.Errorf("log says %q", line)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	requireEnd(t, r)
	if got := names(m, "self"); !slices.Equal(got, []string{"one"}) {
		t.Errorf("kept %q", got)
	}
}

func TestManager_IgnoresStrangers(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, func(int) string { return "" })
	r, w := pipe(t)
	send(t, m.socket, "FDSTORE=1\nFDNAME=x\nREADY=1", w)
	if line := next(t, m.log.ch); !strings.Contains(line, "level=DEBUG") {
		t.Errorf("log says %q", line)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	requireEnd(t, r)
	if len(m.messages) != 0 || len(m.All()) != 0 {
		t.Errorf("a stranger was heard: %d messages, kept %v", len(m.messages), m.All())
	}
}

func TestManager_BoundsTheNamesOfOneOwner(t *testing.T) {
	m := fdstore.NewManager(fdstore.ManagerConfig{}, fdstore.ManagerDeps{})
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 1000 {
		fd, err := unix.Dup(int(os.Stdin.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Put("o", fmt.Sprintf("%0250d", i), fd); errors.Is(err, fault.Exhausted) {
			var all []string
			for _, s := range m.All() {
				all = append(all, s.Name)
			}
			cmd := exec.Command("/bin/true")
			cmd.Env = fdstore.Env("", all)
			if err := cmd.Run(); err != nil {
				t.Errorf("a child cannot be given the %d names: %v", i, err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("1,000 names of 250 characters were all taken")
}

func TestManager_ReexecKeepsSocketAndFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	first := fdstore.NewManager(fdstore.ManagerConfig{Path: path}, fdstore.ManagerDeps{Owner: func(int, uint32) (string, bool) { return "self", true }})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- first.Run(ctx, func() { close(ready) }) }()
	next(t, ready)
	s := client(t, path)
	if err := s.Push("a", w2(t)); err != nil {
		t.Fatal(err)
	}
	socket, err := first.SocketFile()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := next(t, done); err != nil {
		t.Fatal(err)
	}
	send(t, path, "READY=1") // while nobody reads
	second := newManager(t, fdstore.ManagerConfig{Path: path, Socket: socket}, self)
	for _, kept := range first.All() {
		if err := second.Put(kept.Owner, kept.Name, kept.FD); err != nil {
			t.Fatal(err)
		}
	}
	if msg := next(t, second.messages); !msg.Ready || msg.Owner != "self" || msg.PID != os.Getpid() {
		t.Errorf("got %+v, want the message that was on its way", msg)
	}
	if err := s.Push("b", w2(t)); err != nil {
		t.Fatal(err)
	}
	if got := names(second, "self"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("kept %q", got)
	}
}

func TestStore_WithoutAManager(t *testing.T) {
	s := client(t, "")
	if s.Available() {
		t.Error("a manager is available")
	}
	if err := s.Push("a", os.Stdin); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Push = %v, want Unavailable", err)
	}
	if err := errors.Join(s.Notify("READY=1"), s.Remove("a")); err != nil {
		t.Errorf("Notify, Remove = %v", err)
	}
	gone := client(t, filepath.Join(t.TempDir(), "none"))
	if err := gone.Push("a", os.Stdin); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Push to nobody = %v, want Unavailable", err)
	}
	if err := s.Push("a:b", os.Stdin); !errors.Is(err, fault.Invalid) {
		t.Errorf("Push of a bad name = %v, want Invalid", err)
	}
}

// TestStore_FilesOutliveAProcess is the whole round: a child stores the reading end
// of a pipe and is killed; what is written meanwhile is read by the next one, and
// its socket refuses no call.
func TestStore_FilesOutliveAProcess(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	m := newManager(t, fdstore.ManagerConfig{}, func(int) string { return "child" })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "s")})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close(); _ = l.Close() }()
	var writer *os.File
	for life := range 3 {
		if life > 0 { // in its first life the pipe has to have a writer before
			call(t, filepath.Join(dir, "s"))
		}
		cmd, out := start(t, m, socket, fifo)
		msg := next(t, m.messages)
		if want := fmt.Sprintf("found %t", life > 0); !msg.Ready || msg.Status != want || msg.PID != cmd.Process.Pid {
			t.Fatalf("life %d: got %+v, want %q of %d", life, msg, want, cmd.Process.Pid)
		}
		if writer == nil {
			if writer, err = os.OpenFile(fifo, os.O_WRONLY, 0); err != nil {
				t.Fatal(err)
			}
			write(t, writer, 0)
			call(t, filepath.Join(dir, "s"))
		}
		if line, err := out.ReadString('\n'); err != nil || line != fmt.Sprintf("read \"%02d\"\n", life) {
			t.Fatalf("life %d: child said %q, %v", life, line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("life %d: child ended by itself: %v", life, err)
		}
		write(t, writer, life+1) // while nobody but the manager has it open
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f *os.File, n int) {
	t.Helper()
	if _, err := fmt.Fprintf(f, "%02d", n); err != nil {
		t.Fatal(err)
	}
}

// call connects to the socket of the child, which may not live at the time.
func call(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
}

// start begins a life of the child with all that its owner left.
func start(t *testing.T, m *manager, socket *os.File, fifo string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	kept, err := m.Open("child")
	if err != nil {
		t.Fatal(err)
	}
	passed := []string{"child.sock"}
	for _, f := range kept {
		passed = append(passed, f.Name())
	}
	cmd := exec.Command(os.Args[0])
	cmd.ExtraFiles = append([]*os.File{socket}, kept...)
	cmd.Env = append(fdstore.Env(m.socket, passed), envChild+"="+fifo)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for _, f := range kept {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return cmd, bufio.NewReader(out)
}

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
