package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/cgroup"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// groups is an engine with real control groups and no containers.
type groups struct {
	*cgroup.Tree
	parent string

	mu     sync.Mutex
	opened int
}

func (g *groups) Meter(names ...string) (*cgroup.Meter, error) {
	g.mu.Lock()
	g.opened++
	g.mu.Unlock()
	return g.Tree.Meter(g.group(names...))
}

func (g *groups) group(names ...string) string {
	path := g.parent
	for _, name := range names {
		path += "/" + name
	}
	return path
}

func (g *groups) Traffic(id.Sandbox) (*sandboxhostv1.NetworkUsage, error) {
	return nil, fault.New(fault.NotFound, "none")
}

func state(uid id.Sandbox, attempt uint64, containers ...string) *sandboxhostv1.SandboxState {
	s := &sandboxhostv1.SandboxState{Uid: string(uid), Name: "web", Status: &resourcev1.SandboxStatus{Attempt: attempt}}
	for _, name := range containers {
		s.Status.Containers = append(s.Status.Containers, &resourcev1.ContainerStatus{Name: name, Id: fmt.Sprint(name, attempt), Pid: 1})
	}
	return s
}

func TestCollector_KeepsFilesAndMissesNobody(t *testing.T) {
	tree, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	g := &groups{Tree: tree, parent: fmt.Sprintf("/sdstats%d", os.Getpid())}
	defer tree.Clear(g.parent) //nolint:errcheck // the test is over
	there, goes, never := id.NewSandbox(), id.NewSandbox(), id.NewSandbox()
	there, goes = min(there, goes), max(there, goes) // ids of one millisecond have any order
	for _, uid := range []id.Sandbox{there, goes} {
		if err := tree.Ensure(g.group(uid.Lower(), "c")); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	states := map[id.Sandbox]*sandboxhostv1.SandboxState{there: state(there, 1, "c"), goes: state(goes, 1, "c"), never: state(never, 1)}
	ready := false
	c := New(Deps{
		Engine: g, Machine: func() *sandboxhostv1.Usage { return Machine("/proc") }, CPUs: 2, Log: slog.New(slog.DiscardHandler),
		Sandboxes: func() (map[id.Sandbox]*sandboxhostv1.SandboxState, error) {
			mu.Lock()
			defer mu.Unlock()
			if !ready {
				return nil, fault.New(fault.Unavailable, "not adopted yet")
			}
			copied := map[id.Sandbox]*sandboxhostv1.SandboxState{}
			for uid, s := range states {
				copied[uid] = s
			}
			return copied, nil
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() {}) }()
	if _, err := c.Ask(t.Context(), ""); !errors.Is(err, fault.Unavailable) {
		t.Errorf("before adoption: got %v", err)
	}
	change := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	change(func() { ready = true })
	ask := func(what string, uid id.Sandbox, want ...id.Sandbox) Round {
		t.Helper()
		r, err := c.Ask(t.Context(), uid)
		if err != nil || len(r.Sandboxes) != len(want) {
			t.Fatalf("%s: got %v, %v", what, r, err)
		}
		for i, s := range r.Sandboxes {
			if s.GetUid() != string(want[i]) {
				t.Errorf("%s: got %s, want %s", what, s.GetUid(), want[i])
			}
		}
		return r
	}
	complete := func(what string, s *sandboxhostv1.SandboxStats) {
		t.Helper()
		for _, u := range []*sandboxhostv1.Usage{s.GetUsage(), s.GetContainers()[0].GetUsage()} {
			if u == nil || u.CpuUsageNanoseconds == nil || u.MemoryWorkingSetBytes == nil || u.Pids == nil || u.OomKills == nil || u.GetReadSinceBoot().AsDuration() == 0 {
				t.Errorf("%s: got %v", what, u)
			}
		}
	}
	r := ask("all", "", there, goes)
	complete("all", r.Sandboxes[0])
	if m := r.Node.GetMachine(); m.GetCpuUsageNanoseconds() == 0 || m.GetMemoryWorkingSetBytes() == 0 || m.GetPids() == 0 || r.Node.GetCpus() != 2 || r.Node.GetWorkloads() == nil {
		t.Errorf("node: got %v", r.Node)
	}
	opened := g.opened
	ask("again", "", there, goes)
	complete("one", ask("one", there, there).Sandboxes[0])
	if g.opened != opened {
		t.Errorf("%d groups were opened again", g.opened-opened)
	}
	// A group that is removed under the eyes of the reader is absent, the other complete.
	if err := tree.Clear(g.group(goes.Lower())); err != nil {
		t.Fatal(err)
	}
	r = ask("one is gone", "", there, goes)
	complete("beside it", r.Sandboxes[0])
	if s := r.Sandboxes[1]; s.GetUsage() != nil || s.GetContainers()[0].GetUsage() != nil {
		t.Errorf("of a group that is gone: got %v", s)
	}
	// The next attempt is another group by the same name.
	if err := tree.Ensure(g.group(goes.Lower(), "c")); err != nil {
		t.Fatal(err)
	}
	change(func() { states[goes] = state(goes, 2, "c") })
	complete("the next attempt", ask("the next attempt", goes, goes).Sandboxes[0])
	change(func() { delete(states, goes) })
	ask("one less", "", there)
	if _, err := c.Ask(t.Context(), goes); !errors.Is(err, fault.NotFound) {
		t.Errorf("of one that is gone: got %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) || len(c.kept) != 0 {
		t.Errorf("ended: %v with %d groups open", err, len(c.kept))
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Ask(late, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("asked of one that has ended: got %v", err)
	}
}

func TestBusy(t *testing.T) {
	for text, want := range map[string]uint64{
		"cpu  10 1 20 500 60 3 2 0 4 0\ncpu0 1\n": 36 * tick, "": 0, "cpu 1 2\n": 0, "intr 1 2 3 4 5 6 7 8\n": 0, "cpu x 1 20 500 60 3 2 0\n": 0,
	} {
		got := busy(text)
		if (got == nil) != (want == 0) || got != nil && *got != want {
			t.Errorf("%q: got %v, want %d", text, got, want)
		}
	}
	if u := Machine(t.TempDir()); u.CpuUsageNanoseconds != nil || u.MemoryUsageBytes != nil || u.Pids != nil {
		t.Errorf("of no machine: got %v", u)
	}
}
