package e2e

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// fifos lists the named pipes below the folder that ends with the boot.
func fifos(t *testing.T, b *bed.Bed) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(b.Paths.Run(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeNamedPipe != 0 {
			found = append(found, path)
		}
		return nil // what goes away meanwhile is no pipe
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// watchLatency asks for the list of sandboxes again and again until stop is
// called, which returns the longest that an answer took.
func watchLatency(t *testing.T, b *bed.Bed) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var longest time.Duration
	var wg sync.WaitGroup
	host := b.Host()
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			begun := time.Now()
			if _, err := host.ListSandboxes(ctx, &sandboxhostv1.ListSandboxesRequest{}); err != nil && ctx.Err() == nil {
				t.Errorf("list sandboxes: %v", err)
				return
			}
			longest = max(longest, time.Since(begun))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() time.Duration {
		cancel()
		wg.Wait()
		return longest
	}
}

// TestNode_LOG4_StopNeverWaitsForOutput stops sandboxes that were adopted, whatever
// they do with their output.
func TestNode_LOG4_StopNeverWaitsForOutput(t *testing.T) {
	const grace = 2 * time.Second
	b, supervisor := alone(t, bed.Options{Node: "logs: {max_size_per_stream: 4MiB}"})
	wishes := map[string]*sandboxhostv1.EnsureSandboxRequest{}
	for name, args := range map[string][]string{
		"mute": {"mute"}, "silent": {"sleep"}, "flood": {"count", "0s"}, "deaf": {"deaf"},
	} {
		s := spec(always, probe("c", args...))
		s.TerminationGracePeriod = seconds(int(grace.Seconds()))
		wishes[name] = &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: s}
	}
	code := map[string]int32{"deaf": 137}
	for _, what := range []string{"sandboxhost", "containerd", "both", "everything"} {
		t.Run("restart of "+what, func(t *testing.T) {
			for _, w := range wishes {
				w.Generation++
				w.Spec.Desired = resourcev1.DesiredState_DESIRED_STATE_RUNNING
				if _, err := b.Host().EnsureSandbox(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
			before := map[string]*resourcev1.SandboxStatus{}
			for name, w := range wishes {
				before[name] = await(t, b, w.GetUid(), "running", running)
			}
			if open := fifos(t, b); len(open) < len(wishes) {
				t.Fatalf("%d sandboxes run, but there are only the pipes %v", len(wishes), open)
			}
			attempt := before["deaf"].GetAttempt()
			bed.Eventually(t, waitLong, "it ignores the signal", outputIs(t, b, wishes["deaf"].GetUid(), "c", attempt, "deaf\n"))
			switch what {
			case "both":
				b.Kill("sandboxhost")
				b.Kill("containerd")
			case "everything":
				b.KillRunner(supervisor, true)
				supervisor = b.Start()
			default:
				b.Kill(what)
			}
			b.WaitReady()
			latency := watchLatency(t, b)
			begun := time.Now()
			for _, w := range wishes {
				w := proto.CloneOf(w)
				w.Generation++
				w.Spec.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED
				if _, err := b.Host().EnsureSandbox(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
			for name, w := range wishes {
				w.Generation++
				got := await(t, b, w.GetUid(), name+" stopped", ended)
				if took := time.Since(begun); took > grace+5*time.Second {
					t.Errorf("%s: the stop took %v, want grace and 5 s at most", name, took)
				}
				exit := got.GetExits()[len(got.GetExits())-1]
				if exit.GetAttempt() != before[name].GetAttempt() || int32(exit.GetCode()) != code[name] || exit.GetUnknown() {
					t.Errorf("%s: got exit %v, want code %d of attempt %d", name, exit, code[name], before[name].GetAttempt())
				}
			}
			if longest := latency(); longest > time.Second {
				t.Errorf("a list took %v while sandboxes were stopped", longest)
			}
			if left := fifos(t, b); len(left) > 0 {
				t.Errorf("pipes left: %v", left)
			}
		})
	}
	for _, w := range wishes {
		removeAll(t, b, w.GetUid())
	}
	settled(t, b)
}
