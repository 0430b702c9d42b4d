package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// reexeced has a node's supervisor replace its program, and returns when the next
// one serves.
func (n *node) reexeced() {
	n.t.Helper()
	of := n.own()
	if now, err := n.restarted(of); err != nil || now.GetNumber() != of.GetNumber()+1 {
		n.t.Fatalf("got %v, %v, want the program after %v", now, err, of)
	}
}

func TestReexec_KeepsProcessChildrenSocketsAndStore(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "storing"}, part{name: "b", mode: "serve", more: "needs: [a]"}, part{name: "c", mode: "fail"})
	n.start()
	n.untilState("b", ready)
	n.until("c", "failed three times", func(c *supervisorv1.Component) bool { return c.GetStarts() >= 3 })
	before := n.graph()
	sockets := map[string]uint64{}
	for _, name := range []string{"a", "b", "supervisor"} {
		sockets[name] = n.inode(name)
	}
	for range 3 {
		n.reexeced()
		for _, name := range []string{"a", "b"} {
			if got := n.untilState(name, ready); got.GetPid() != before[name].GetPid() || got.GetStarts() != 1 {
				t.Errorf("got %v, want %s in the same process", got, name)
			}
		}
		for name, inode := range sockets {
			if got := n.inode(name); got != inode {
				t.Errorf("got socket %d of %s, want %d kept", got, name, inode)
			}
		}
	}
	c := n.graph()["c"]
	if c.GetStarts() < before["c"].GetStarts() {
		t.Errorf("got %d starts of c, want at least %d", c.GetStarts(), before["c"].GetStarts())
	}
	// The children still are its own: their ends are seen, with what they left.
	pid := before["a"].GetPid()
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := n.untilAgain("a", pid); got.GetLastExit() != "signal killed" {
		t.Errorf("got last exit %q, want that of its own child", got.GetLastExit())
	}
	if got := n.lines("words"); !slices.Equal(got, []string{"none", "first"}) {
		t.Errorf("got words %v, want the stored pipe handed on", got)
	}
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0: it must hear a stop", code)
	}
	if left, err := filepath.Glob(filepath.Join(n.root, "run/*.sock")); err != nil || len(left) > 0 {
		t.Errorf("got sockets %v (%v), want none left", left, err)
	}
}

// inode is the identity of a component's socket.
func (n *node) inode(name string) uint64 {
	n.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(n.root, "run", name+".sock"), &st); err != nil {
		n.t.Fatal(err)
	}
	return st.Ino
}

// The leash holds over the replacement, and so does the word of the next
// supervisor about left-overs.
func TestReexec_ChildrenStillEndWithTheSupervisor(t *testing.T) {
	n := newNode(t, "", chain("serve")...)
	n.start()
	n.untilState("c", ready)
	n.reexeced()
	var pids []int
	for _, c := range n.graph() {
		pids = append(pids, int(c.GetPid()))
	}
	n.signal(syscall.SIGKILL)
	n.wait()
	n.eventually(func() bool { return !slices.ContainsFunc(pids, alive) }, func() string { return fmt.Sprintf("%v to end by their leash", pids) })
	n.start()
	n.untilState("c", ready)
}

// replaceFile puts a program in the place of another, as an installer does.
func replaceFile(path, text string) error {
	return errors.Join(os.WriteFile(path+".new", []byte(text), 0o755), os.Rename(path+".new", path))
}

// The graph may change with the program: what is in it no more ends, and what is
// new starts.
func TestReexec_ReadsTheGraphAnew(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"}, part{name: "b", mode: "serve"})
	n.start()
	n.untilState("b", ready)
	before := n.graph()
	n.configure("", part{name: "a", mode: "serve"}, part{name: "c", mode: "serve"})
	n.reexeced()
	n.untilState("c", ready)
	after := n.graph()
	if after["a"].GetPid() != before["a"].GetPid() || after["b"] != nil {
		t.Errorf("got %v, want a kept and b gone", after)
	}
	if alive(int(before["b"].GetPid())) {
		t.Error("got b alive, want it ended")
	}
}

// Callers wait while the program is replaced; none is refused.
func TestReexec_RefusesNoCall(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "serve"})
	n.start()
	n.untilState("a", ready)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var failed []error
	calls := 0
	wg.Go(func() { // ends with ctx; waited for below
		for ctx.Err() == nil {
			within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := n.api.GetGraph(within, &supervisorv1.GetGraphRequest{}); err != nil {
				failed = append(failed, err)
			}
			cancel()
			calls++
		}
	})
	for range 5 {
		n.reexeced()
	}
	stop()
	wg.Wait()
	if len(failed) > 0 || calls == 0 {
		t.Errorf("got %d of %d calls failed: %v", len(failed), calls, errors.Join(failed...))
	}
}
