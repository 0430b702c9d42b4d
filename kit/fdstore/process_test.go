package fdstore_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
			fmt.Fprintln(os.Stdout, "error:", err)
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
	fmt.Fprintf(os.Stdout, "read %q\n", buf)
	select {}
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
