package upgrade

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"staddle.internal/kit/fault"

	"staddle.internal/services/supervisor/internal/machine"
)

// node is a boot graph of two components whose processes are ready at once, unless
// the program that they are started from is broken.
type node struct {
	t   *testing.T
	bin string

	renewed atomic.Int32 // how often the supervisor's own program was to be replaced

	mu      sync.Mutex // guards all below
	table   machine.Table
	program map[string]string
	ran     []string
	hang    string // a component that never becomes ready again
	changed chan struct{}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, bin: t.TempDir(), changed: make(chan struct{}), program: map[string]string{}}
	n.table = plan().Start(time.Now())
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(n.bin, "prog-"+name), "old")
		n.program[name] = filepath.Join(n.bin, "prog-"+name)
		n.table.Members[name].State, n.table.Members[name].Starts = machine.Ready, 1
	}
	return n
}

func plan() machine.Plan {
	p := machine.Plan{}
	for _, name := range []string{"a", "b"} {
		p.Components = append(p.Components, machine.Component{Name: name, StartTimeout: 200 * time.Millisecond, StopTimeout: time.Millisecond})
	}
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (n *node) Program(name string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return []string{n.program[name], "--flag"}, nil
}

func (n *node) Ask(cmd *exec.Cmd) error { return cmd.Run() }

func (n *node) Replace(name, path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.program[name] = path
	return nil
}

func (n *node) Table() machine.Table {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.table
}

func (n *node) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *node) Restart(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := read(n.t, n.program[name])
	n.ran = append(n.ran, name+" "+text)
	m := *n.table.Members[name]
	m.Starts, m.State, m.Reason = m.Starts+1, machine.Ready, ""
	switch {
	case text == "broken":
		m.State, m.Reason = machine.BackingOff, "exit code 1"
	case n.hang == name && text != "old":
		m.State, m.Reason = machine.Starting, "waiting for godot"
	}
	members := map[string]*machine.Member{}
	for other, is := range n.table.Members {
		members[other] = is
	}
	members[name] = &m
	n.table.Members = members
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

// start runs an upgrader over the node.
func (n *node) start(check func(string, []string) []string) *Upgrader {
	n.t.Helper()
	u := New(Config{Plan: plan(), Bin: n.bin, Programs: []string{"prog-a", "prog-b", "tool", "own"}, Check: check, Own: "own"},
		Deps{Children: n, Graph: n, Log: slog.New(slog.DiscardHandler), Renew: func() { n.renewed.Add(1) }, Try: func(_ context.Context, path string) error {
			if text := read(n.t, path); text == "broken" {
				return errors.New("it ended in its trial")
			}
			return nil
		}})
	ctx, cancel := context.WithCancel(n.t.Context())
	up, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- u.Run(ctx, func() { close(up) }) }()
	n.t.Cleanup(func() { cancel(); <-over })
	<-up
	return u
}

func has(t *testing.T, path string) bool {
	t.Helper()
	there, err := exists(path)
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// settle has the upgrader end what an earlier one left.
func (n *node) settle(u *Upgrader) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	if err := u.Settle(ctx, cancel); !errors.Is(err, context.Canceled) {
		n.t.Errorf("settle: got %v, want the end of its context", err)
	}
}

func unasked(string, []string) []string { return nil }

func (n *node) upgrade(u *Upgrader, from string) (notes []Note, err error) {
	err = u.Upgrade(n.t.Context(), from, func(note Note) error { notes = append(notes, note); return nil })
	return notes, err
}

// clean is true when the folder of binaries has nothing but binaries.
func (n *node) clean() bool {
	entries, err := os.ReadDir(n.bin)
	if err != nil {
		n.t.Fatal(err)
	}
	return !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
}

func source(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func TestUpgrade_InstallsWhatBecameReady(t *testing.T) {
	n := newNode(t)
	u := n.start(unasked)
	notes, err := n.upgrade(u, source(t, map[string]string{"prog-a": "new", "tool": "new", "stranger": "x"}))
	if err != nil || notes[len(notes)-1].Stage != Installed {
		t.Fatalf("got %v and %v, want installed", notes, err)
	}
	for _, name := range []string{"prog-a", "tool"} {
		if got := read(t, filepath.Join(n.bin, name)); got != "new" {
			t.Errorf("%s is %q, want the new one", name, got)
		}
	}
	if want := []string{"a new", "b old"}; !slices.Equal(n.ran, want) {
		t.Errorf("ran %v, want %v", n.ran, want)
	}
	if p := n.program["a"]; p != filepath.Join(n.bin, "prog-a") || !n.clean() || has(t, filepath.Join(n.bin, "stranger")) {
		t.Errorf("a is started from %s, or something is left", p)
	}
	n.ran = nil
	if _, err := n.upgrade(u, ""); err != nil || !slices.Equal(n.ran, []string{"a new", "b old"}) {
		t.Errorf("restart in place: got %v, ran %v", err, n.ran)
	}
	for end := time.Now().Add(10 * time.Second); n.renewed.Load() != 2; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("the supervisor's own program was to be replaced %d times, want 2", n.renewed.Load())
		}
	}
}

func TestUpgrade_PutsAllBackWhenOneIsNotReady(t *testing.T) {
	for _, c := range []struct{ name, hang, b, why string }{
		{"one ends at once", "", "broken", "exit code 1"},
		{"one is never ready", "b", "new", "godot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.hang = c.hang
			u := n.start(unasked)
			_, err := n.upgrade(u, source(t, map[string]string{"prog-a": "new", "prog-b": c.b}))
			if fault.Reason(err) != ReasonPutBack || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "component b") {
				t.Fatalf("got %v, want reason %s with its cause", err, ReasonPutBack)
			}
			if want := []string{"a new", "b " + c.b, "b old", "a old"}; !slices.Equal(n.ran, want) {
				t.Errorf("ran %v, want %v", n.ran, want)
			}
			if read(t, filepath.Join(n.bin, "prog-a")) != "old" || !n.clean() || n.renewed.Load() != 0 {
				t.Error("the installed binaries were changed")
			}
		})
	}
}

func TestUpgrade_TouchesNothingWhenTheBinariesAreWrong(t *testing.T) {
	fails := func(string, []string) []string { return []string{"/bin/false"} }
	for _, c := range []struct {
		name  string
		from  func(t *testing.T) string
		check func(string, []string) []string
	}{
		{"relative", func(*testing.T) string { return "bin" }, unasked},
		{"missing", func(*testing.T) string { return "/nowhere" }, unasked},
		{"empty", func(t *testing.T) string { return t.TempDir() }, unasked},
		{"no program", func(t *testing.T) string {
			dir := source(t, map[string]string{"prog-a": "new"})
			if err := os.Chmod(filepath.Join(dir, "prog-a"), 0o644); err != nil {
				t.Fatal(err)
			}
			return dir
		}, unasked},
		{"refuses the configuration", func(t *testing.T) string { return source(t, map[string]string{"prog-a": "new"}) }, fails},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			_, err := n.upgrade(n.start(c.check), c.from(t))
			if !errors.Is(err, fault.Invalid) || len(n.ran) > 0 || !n.clean() {
				t.Errorf("got %v, ran %v, want Invalid and nothing touched", err, n.ran)
			}
		})
	}
}

func TestUpgrade_RefusesWhatIsNotReadyAndASecond(t *testing.T) {
	n := newNode(t)
	u := n.start(unasked)
	held := make(chan struct{})
	first := make(chan error, 1)
	n.hang = "a"
	go func() {
		first <- u.Upgrade(t.Context(), source(t, map[string]string{"prog-a": "new"}), func(note Note) error {
			if note.Stage == Restarting {
				close(held)
			}
			return nil
		})
	}()
	<-held
	if _, err := n.upgrade(u, ""); fault.Reason(err) != ReasonRunning {
		t.Errorf("a second one: got %v, want reason %s", err, ReasonRunning)
	}
	if err := <-first; fault.Reason(err) != ReasonPutBack {
		t.Fatalf("got %v", err)
	}
	n.table.Members["b"].State = machine.NotReady
	if _, err := n.upgrade(u, ""); fault.Reason(err) != ReasonNotReady {
		t.Errorf("while one is not ready: got %v, want reason %s", err, ReasonNotReady)
	}
}

// A supervisor that died in the middle leaves what is dropped, or what is finished.
func TestUpgrade_EndsWhatWasBrokenOff(t *testing.T) {
	for _, proven := range []bool{false, true} {
		n := newNode(t)
		s := stage{bin: n.bin, programs: []string{"prog-a", "prog-b"}}
		if _, err := s.fill(source(t, map[string]string{"prog-a": "new"})); err != nil {
			t.Fatal(err)
		}
		want := "old"
		if proven {
			write(t, s.proven(), "")
			want = "new"
		}
		n.settle(n.start(unasked))
		if got := read(t, filepath.Join(n.bin, "prog-a")); got != want || !n.clean() {
			t.Errorf("proven %v: installed is %q, want %q and nothing left", proven, got, want)
		}
	}
}

// A program of the supervisor itself that would not get far is found out before
// anything is touched.
func TestUpgrade_TriesTheProgramOfTheSupervisorItself(t *testing.T) {
	n := newNode(t)
	u := n.start(unasked)
	_, err := n.upgrade(u, source(t, map[string]string{"prog-a": "new", "own": "broken"}))
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "supervisor: it ended in its trial") {
		t.Errorf("got %v, want Invalid with what is wrong", err)
	}
	if len(n.ran) > 0 || !n.clean() || has(t, filepath.Join(n.bin, "own")) {
		t.Errorf("ran %v, or something is left, want nothing touched", n.ran)
	}
	if _, err := n.upgrade(u, source(t, map[string]string{"own": "new"})); err != nil || read(t, filepath.Join(n.bin, "own")) != "new" {
		t.Errorf("got %v, want a good one installed", err)
	}
}
