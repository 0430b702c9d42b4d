package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/inventory"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// check is what a check finds, in words.
func (n *node) check(fix bool) []string {
	n.t.Helper()
	r, err := n.host.Check(context.Background(), fix)
	if err != nil {
		n.t.Fatalf("check: %v", err)
	}
	list := []string{}
	for _, f := range r.Findings {
		how := "left"
		if f.Missing {
			how = "missing"
		}
		switch {
		case f.Fixed:
			how += ", fixed"
		case f.Err != nil:
			how += ", not fixed"
		}
		list = append(list, fmt.Sprintf("%s %s: %s", strings.TrimPrefix(f.Kind.String(), "OBJECT_KIND_"), f.Name, how))
	}
	return list
}

func (n *node) wantCheck(fix bool, want ...string) {
	n.t.Helper()
	slices.Sort(want)
	got := n.check(fix)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		n.t.Errorf("check with fix %t: got\n%s\nwant\n%s", fix, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCheck_NothingIsDifferent(t *testing.T) {
	inBubble(t, func(n *node) {
		n.wantCheck(false)
		runs, stops := wishFor(host.ManagerLocal, "sleep", "sleep"), wishFor(host.ManagerLocal, "sleep")
		stops.Name = "stops"
		n.ensure(runs)
		n.ensure(stops)
		n.awaitPhase(runs.GetUid(), running, 1)
		n.awaitPhase(stops.GetUid(), running, 1)
		n.wantCheck(false)
		if err := n.host.Remove(context.Background(), id.Sandbox(stops.GetUid()), host.ManagerLocal); err != nil {
			t.Fatal(err)
		}
		n.await(stops.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
		n.wantCheck(false)
		n.wantCheck(true)
	})
}

func TestCheck_LeftOfNoSandboxIsRemoved(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		stray := id.NewSandbox()
		made := engine.Attempt{Wish: &sandboxhostv1.Wish{Uid: string(stray)}, Number: 1}
		for _, step := range []engine.Step{engine.StepNamespaces, engine.StepNetwork} {
			if err := n.engine.Do(context.Background(), made, engine.Action{Step: step}); err != nil {
				t.Fatal(err)
			}
		}
		n.engine.Litter(inventory.Object{Kind: inventory.Lease, Name: "l1"})
		n.engine.Litter(inventory.Object{Kind: inventory.Snapshot, Name: "old", UID: stray, Container: "old"})
		objects := []string{"NAMESPACE " + stray.Lower(), "FOLDER " + stray.Lower(), "INTERFACE " + stray.Lower(), "LEASE l1", "SNAPSHOT old"}
		n.wantCheck(false, withEnding(objects, ": left")...)
		n.wantCheck(true, withEnding(objects, ": left, fixed")...)
		n.wantCheck(false)
		if starts := n.engine.Starts(); len(starts) != 1 {
			t.Errorf("the sandbox that runs was touched: %v", starts)
		}
	})
}

func withEnding(list []string, ending string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = s + ending
	}
	return out
}

func TestCheck_LeftOfAnEarlierAttempt(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.awaitPhase(w.GetUid(), running, 1)
		n.engine.Litter(inventory.Object{Kind: inventory.StartRecord, Name: "old", UID: id.Sandbox(w.GetUid()), Container: "old"})
		n.wantCheck(false, "START_RECORD old: left")
		n.wantCheck(true, "START_RECORD old: left, fixed")
		n.wantCheck(false)
		n.awaitPhase(w.GetUid(), running, 1)
	})
}

func TestCheck_NetworkIsMended(t *testing.T) {
	inBubble(t, func(n *node) {
		n.engine.Litter(inventory.Object{Kind: inventory.Network, Name: "the rules are gone"})
		n.wantCheck(false, "NETWORK the rules are gone: missing")
		n.wantCheck(true, "NETWORK the rules are gone: missing, fixed")
		n.wantCheck(true)
	})
}

// A sandbox that fails at the same step again and again is not compared, and said to
// be so.
func TestCheck_BusyIsSaid(t *testing.T) {
	inBubble(t, func(n *node) {
		n.engine.Before = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
			if a.Step == engine.StepNetwork {
				return fault.New(fault.Unavailable, "no bridge")
			}
			return nil
		}
		w := wishFor(host.ManagerLocal, "sleep")
		n.ensure(w)
		n.await(w.GetUid(), "in trouble", func(s state) bool { return strings.Contains(s.GetStatus().GetMessage(), "no bridge") })
		r, err := n.host.Check(context.Background(), false)
		if err != nil || len(r.Findings) > 0 || r.Sandboxes != 0 || len(r.Uncompared) != 1 || !strings.Contains(r.Uncompared[0].Activity, "no bridge") {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

func TestCheck_FailedQuestionIsNoAnswer(t *testing.T) {
	inBubble(t, func(n *node) {
		n.engine.Deafen(fault.New(fault.Unavailable, "containerd is away"))
		_, err := n.host.Check(context.Background(), true)
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
	})
}

// New sandboxes that come while somebody mends again and again are never touched.
func TestCheck_FreshSandboxesAreLeftAlone(t *testing.T) {
	inBubble(t, func(n *node) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { // waited for below
			defer close(done)
			for ctx.Err() == nil {
				if r, err := n.host.Check(ctx, true); err == nil && len(r.Findings) > 0 {
					t.Errorf("found %+v", r.Findings)
				}
				time.Sleep(time.Millisecond) // of the bubble, whose time stands still otherwise
			}
		}()
		for i := range 4 {
			w := wishFor(host.ManagerLocal, "sleep")
			w.Name = fmt.Sprintf("fresh-%d", i)
			n.ensure(w)
			n.awaitPhase(w.GetUid(), running, 1)
		}
		time.Sleep(time.Second)
		cancel()
		<-done
		for containerID, starts := range n.engine.Starts() {
			if starts != 1 {
				t.Errorf("%s was started %d times", containerID, starts)
			}
		}
	})
}
