package rpc

import (
	"bufio"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/fault"
)

// UDS-1: what a crash leaves behind never blocks a start, and nothing that lives
// is taken away.
func TestListen_UDS1(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    error // a kind, or nil
		text    string
	}{
		{"nothing there", func(*testing.T, string) {}, nil, ""},
		{"socket without server", deadSocket, nil, ""},
		{"socket of a killed process", killedListener, nil, ""},
		{"dangling link", func(t *testing.T, path string) { must(t, os.Symlink(path+".none", path)) }, nil, ""},
		{"plain file", func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("x"), 0o600)) }, fault.Invalid, "plain file"},
		{"folder", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }, fault.Invalid, "folder"},
		{"link to a file", func(t *testing.T, path string) {
			must(t, os.WriteFile(path+".there", nil, 0o600))
			must(t, os.Symlink(path+".there", path))
		}, fault.Invalid, "link"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "s.sock")
			tc.prepare(t, path)
			begin := time.Now()
			l, err := Listen(path, 0o600)
			if tc.want != nil {
				if !errors.Is(err, tc.want) {
					t.Fatalf("got %v, want %v", err, tc.want)
				}
				wantText(t, err, path, tc.text)
				if _, err := os.Lstat(path); err != nil {
					t.Fatalf("what stood there is gone: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			checkServed(t, path)
			must(t, l.Close())
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Close the socket is still there: %v", err)
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func deadSocket(t *testing.T, path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

// startListener runs a process that holds the socket.
func startListener(t *testing.T, path string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "KIT_TEST_ROLE=listen", "KIT_TEST_SOCKET="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return cmd
}

func killedListener(t *testing.T, path string) {
	cmd := startListener(t, path)
	must(t, cmd.Process.Kill())
	cmd.Wait()
}

func checkServed(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	must(t, err)
	must(t, conn.Close())
	info, err := os.Lstat(path)
	must(t, err)
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
}

func TestListen_NeverTakesALiveSocket(t *testing.T) {
	for _, state := range []string{"running", "stopped"} {
		t.Run(state, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "s.sock")
			cmd := startListener(t, path)
			if state == "stopped" {
				must(t, cmd.Process.Signal(syscall.SIGSTOP))
			}
			_, err := Listen(path, 0o600)
			wantKind(t, err, fault.Conflict)
			wantText(t, err, path, "pid "+strconv.Itoa(cmd.Process.Pid))
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatalf("the other server is not reachable any more: %v", err)
			}
			conn.Close()
		})
	}
}

func TestListen_PathLength(t *testing.T) {
	dir := shortDir(t)
	exact := filepath.Join(dir, strings.Repeat("x", MaxPathLength-len(dir)-1))
	l, err := Listen(exact, 0o600)
	if err != nil {
		t.Fatalf("a path of %d bytes: %v", len(exact), err)
	}
	checkServed(t, exact)
	must(t, l.Close())

	_, err = Listen(exact+"x", 0o600)
	wantKind(t, err, fault.Invalid)
	wantText(t, err, "108 bytes", "107", "--root")
	_, err = Dial(exact+"x", DialConfig{})
	wantKind(t, err, fault.Invalid)
	wantText(t, err, "108 bytes", "--root")
}

func TestListen_OneWinnerOfManyStarts(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	deadSocket(t, path)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var winners []net.Listener
	for range 8 {
		wg.Go(func() {
			l, err := Listen(path, 0o600)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				winners = append(winners, l)
			} else if !errors.Is(err, fault.Conflict) {
				t.Errorf("a loser got %v, want Conflict", err)
			}
		})
	}
	wg.Wait()
	if len(winners) != 1 {
		t.Fatalf("%d winners, want 1", len(winners))
	}
	checkServed(t, path)
	must(t, winners[0].Close())
}

// The path leads to a served socket or to nothing, at every instant. Only a dial
// during which the socket was closed may be refused: it had looked the path up
// before.
func TestListen_NeverVisibleUnserved(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	stop := make(chan struct{})
	var closes atomic.Int64 // odd while the socket is being closed
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			before := closes.Load()
			conn, err := net.Dial("unix", path)
			closed := before%2 == 1 || closes.Load() != before
			switch {
			case err == nil:
				conn.Close()
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNRESET):
			case errors.Is(err, syscall.ECONNREFUSED) && closed:
			default:
				t.Errorf("dial: %v", err)
				return
			}
		}
	})
	for range 200 {
		l, err := Listen(path, 0o600)
		must(t, err)
		closes.Add(1)
		must(t, l.Close())
		closes.Add(1)
	}
	close(stop)
	wg.Wait()
}

func TestListen_CloseLeavesASuccessorAlone(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	first, err := Listen(path, 0o600)
	must(t, err)
	must(t, os.Remove(path))
	second, err := Listen(path, 0o600)
	must(t, err)
	must(t, first.Close())
	checkServed(t, path)
	must(t, second.Close())
}
