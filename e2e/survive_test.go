package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// survivors are sandboxes that must come through whatever happens to the runner.
type survivors struct {
	uids   []string
	others []string // sandboxes beside them, which may change
	status map[string]*resourcev1.SandboxStatus
	births map[string]string
}

// settle starts n sandboxes, each with a server on the same port and a process that
// would be missed.
func settle(t *testing.T, b *bed.Bed, n int) *survivors {
	t.Helper()
	s := &survivors{status: map[string]*resourcev1.SandboxStatus{}, births: map[string]string{}}
	for i := range n {
		s.uids = append(s.uids, ensure(t, b, fmt.Sprintf("survivor-%d", i), spec(always, probe("c", "serve", "7000"))))
	}
	for _, uid := range s.uids {
		s.status[uid] = await(t, b, uid, "running", running)
		s.births[uid] = birth(t, s.status[uid])
		bed.Eventually(t, waitLong, "it serves", outputIs(t, b, uid, "c", 1, "serving\n"))
	}
	return s
}

// birth is when the main process of a sandbox was started, in ticks since boot.
func birth(t *testing.T, s *resourcev1.SandboxStatus) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids(s)["c"]))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return strings.Fields(after)[19]
}

// same checks that each of them is as it was: one process and that one, one
// address and that one, in its first attempt, and nobody else but the others beside
// them.
func (s *survivors) same(t *testing.T, b *bed.Bed, when string) {
	t.Helper()
	want := []int{}
	for _, uid := range s.uids {
		got := await(t, b, uid, "running "+when, running)
		was := s.status[uid]
		if sprint(pids(got)) != sprint(pids(was)) || got.GetAttempt() != was.GetAttempt() || len(got.GetExits()) != 0 ||
			!slices.Equal(got.GetAddresses(), was.GetAddresses()) {
			t.Fatalf("%s: got %v, want %v", when, got, was)
		}
		if got := birth(t, got); got != s.births[uid] {
			t.Fatalf("%s: the process was started at %s, want %s", when, got, s.births[uid])
		}
		if got.GetSeq() < was.GetSeq() {
			t.Fatalf("%s: seq went back to %d from %d", when, got.GetSeq(), was.GetSeq())
		}
		s.status[uid] = got
		want = append(want, int(pids(got)["c"]))
	}
	list, err := b.Host().ListSandboxes(t.Context(), &sandboxhostv1.ListSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(list.GetSandboxes()); n != len(s.uids)+len(s.others) {
		t.Fatalf("%s: the host knows %d sandboxes, want %d and %d others: %v", when, n, len(s.uids), len(s.others), list.GetSandboxes())
	}
	for _, other := range list.GetSandboxes() {
		if pid := pids(other.GetStatus())["c"]; slices.Contains(s.others, other.GetUid()) && pid != 0 {
			want = append(want, int(pid))
		}
	}
	got := b.Workloads()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("%s: processes %v run in sandboxes, want %v", when, got, want)
	}
}

// holdContainerd freezes the containerd of the bed as soon as there is one.
func holdContainerd(t *testing.T, b *bed.Bed) (letGo func()) {
	t.Helper()
	held := 0
	bed.Eventually(t, waitLong, "containerd is started", func(context.Context) (bool, string) {
		for pid, name := range b.Processes() {
			if name == "containerd" {
				held = pid
			}
		}
		return held != 0 && syscall.Kill(held, syscall.SIGSTOP) == nil, sprint(b.Processes())
	})
	return func() {
		if err := syscall.Kill(held, syscall.SIGCONT); err != nil {
			t.Fatalf("containerd was ended while it was held: %v", err)
		}
	}
}

// TestNode_ADO3_NoSecondCopyBesideASurvivor restarts a runner with 5 sandboxes 9
// times, instead of one with 10 and 20 times; every third time containerd comes 2 s
// late: longer, and the supervisor would take it for hung and start another. The sandboxes have a port, but no disk: a node alone has none to grant.
func TestNode_ADO3_NoSecondCopyBesideASurvivor(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	s := settle(t, b, 5)
	waits := func(letGo func()) {
		t.Helper()
		defer letGo()
		begun := time.Now()
		bed.Eventually(t, waitLong, "sandboxhost waits for containerd for 2 s", func(ctx context.Context) (bool, string) {
			graph, err := b.Graph(ctx)
			if err != nil {
				return false, err.Error()
			}
			c := graph["sandboxhost"]
			waits := c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_READY
			return waits && time.Since(begun) > 2*time.Second, c.String()
		})
	}
	for i := range 9 {
		kind := []string{"stop", "kill", "kill of sandboxhost"}[i%3]
		late := i/3 == i%3 // each kind once
		switch {
		case kind == "stop":
			b.StopRunner(supervisor)
			supervisor = b.Start()
		case kind == "kill":
			b.KillRunner(supervisor, true)
			supervisor = b.Start()
		case late: // containerd does not end, so it is held before
			letGo := holdContainerd(t, b)
			b.Kill("sandboxhost")
			waits(letGo)
		default:
			b.Kill("sandboxhost")
		}
		if late && kind != "kill of sandboxhost" {
			waits(holdContainerd(t, b))
		}
		b.WaitReady()
		s.same(t, b, fmt.Sprintf("after restart %d, a %s, containerd late: %v", i, kind, late))
	}
	// Each still serves, at the address that it had.
	for _, uid := range s.uids {
		ask := ensure(t, b, "ask", spec(never, probe("client", "ask", s.status[uid].GetAddresses()[0]+":7000", uid)))
		bed.Eventually(t, waitLong, "the survivor answers", outputIs(t, b, ask, "client", 1, "answer "+uid+"\n"))
		removeAll(t, b, ask)
	}
	removeAll(t, b, s.uids...)
	settled(t, b)
}
