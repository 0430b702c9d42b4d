package supervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/rpc"
)

// called makes a new connection to a socket of the node, within a second, and
// returns which process answers.
func (n *node) called(name string) (string, error) {
	n.t.Helper()
	conn, err := rpc.Dial(filepath.Join(n.root, "run", name+".sock"), rpc.DialConfig{})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
	defer cancel()
	st, err := processv1.NewProcessServiceClient(conn).GetStatus(ctx, &processv1.GetStatusRequest{})
	return st.GetProcess(), errors.Join(err, conn.Close())
}

// UDS-7: the socket of each process is lost in turn, then the whole folder, then
// the folder with the second names of the sockets as well.
func TestSupervisor_UDS7_LostSocketsAreReachedAgainWithinASecond(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	before := n.graph()
	names := []string{"a", "b", "c", "supervisor"}
	for _, name := range names {
		if err := os.Remove(filepath.Join(n.root, "run", name+".sock")); err != nil {
			t.Fatal(err)
		}
		if got, err := n.called(name); err != nil || got != name {
			t.Errorf("after the loss of its socket %s answered as %q: %v", name, got, err)
		}
	}
	n.lose("run")
	for _, name := range names {
		if got, err := n.called(name); err != nil || got != name {
			t.Errorf("after the loss of the folder %s answered as %q: %v", name, got, err)
		}
	}
	for name, c := range n.graph() {
		if c.GetPid() != before[name].GetPid() {
			t.Errorf("got %v, want %s in the same process: its socket was put back", c, name)
		}
	}
	// The notes of a lost folder are back, and its children have a place to notify.
	for _, path := range []string{"a.pid", "notify.sock"} {
		n.eventually(func() bool {
			_, err := os.Stat(filepath.Join(n.root, "run/supervisor", path))
			return err == nil
		}, func() string { return path + " to be made again" })
	}
}

// SYS-4: what the runtime folder held is made again, five times, with a folder of
// another identity each time; and where also the second names are lost the
// processes that nobody reaches any more are started again.
func TestSupervisor_SYS4_RuntimeFolderIsMadeAgain(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	for range 5 {
		n.lose("run")
		for _, name := range []string{"a", "b", "c", "supervisor"} {
			if got, err := n.called(name); err != nil || got != name {
				t.Errorf("%s answered as %q: %v", name, got, err)
			}
		}
	}
	before := n.graph()
	n.lose("run.sockets")
	n.lose("run")
	for name, c := range before {
		n.eventually(func() bool { got, err := n.called(name); return err == nil && got == name }, func() string { return name + " to be reached" })
		if after := n.untilAgain(name, c.GetPid()); after.GetLastExit() != "exit code 0" {
			t.Errorf("got %v, want one restart in order", after)
		}
	}
}

// lose takes a folder away with all that is in it, at once.
func (n *node) lose(folder string) {
	n.t.Helper()
	path := filepath.Join(n.root, folder)
	if err := errors.Join(os.Rename(path, path+".lost"), os.RemoveAll(path+".lost")); err != nil {
		n.t.Fatal(err)
	}
}

// UDS-1: what a process may find at its path after a crash, and what it must leave.
func TestSupervisor_UDS1_LeftoversAtThePathOfASocket(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	path := filepath.Join(n.root, "run/b.sock")
	dead := func() error { // a socket whose server has died
		l, err := rpc.Listen(filepath.Join(n.root, "dead.sock"), rpc.DefaultSocketMode)
		if err != nil {
			return err
		}
		return errors.Join(os.Rename(filepath.Join(n.root, "dead.sock"), path), l.Close())
	}
	for name, leave := range map[string]func() error{
		"nothing":        func() error { return nil },
		"dead socket":    dead,
		"dangling link":  func() error { return os.Symlink("/does/not/exist", path) },
		"its own socket": nil,
	} {
		t.Run(name, func(t *testing.T) {
			pid := n.graph()["b"].GetPid()
			n.signal(syscall.SIGSTOP) // so that the crash and what it leaves are seen together
			if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if leave != nil {
				if err := errors.Join(os.Remove(path), leave()); err != nil {
					t.Fatal(err)
				}
			}
			n.signal(syscall.SIGCONT)
			n.untilAgain("b", pid)
			if got, err := n.called("b"); err != nil || got != "b" {
				t.Errorf("answered as %q: %v", got, err)
			}
		})
	}
}

// A socket that somebody else serves is never taken away, and the trouble has a
// name.
func TestSupervisor_LeavesASocketThatAnotherServes(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	pid := n.untilState("a", ready).GetPid()
	path := filepath.Join(n.root, "run/a.sock")
	other, err := rpc.Listen(filepath.Join(n.root, "other.sock"), rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.Rename(filepath.Join(n.root, "other.sock"), path); err != nil {
		t.Fatal(err)
	}
	n.eventually(func() bool { return strings.Contains(n.out.String(), "is served by pid") }, func() string { return "the trouble to be told:\n" + n.out.String() })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := n.called("a"); err != nil || got != "a" {
		t.Errorf("once that is gone: answered as %q: %v", got, err)
	}
	if c := n.graph()["a"]; c.GetPid() != pid {
		t.Errorf("got %v, want the same process", c)
	}
}

// The socket belongs to the user of its process.
func TestSupervisor_SocketHasTheOwnerOfItsProcess(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	n.untilState("a", ready)
	info, err := os.Lstat(filepath.Join(n.root, "run/a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Getuid() || info.Mode().Perm() != rpc.DefaultSocketMode {
		t.Errorf("got owner %d and mode %o, want %d and %o", st.Uid, info.Mode().Perm(), os.Getuid(), rpc.DefaultSocketMode)
	}
}
