package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// waitsFor checks that a boot has come as far as it can without storage: what needs
// it has never been started and says for what it waits, what does not is ready, and
// the cluster has no node to give work to.
func waitsFor(t *testing.T, b *bed.Bed, says string) {
	t.Helper()
	bed.Eventually(t, time.Minute, "all wait for storage, which says "+says, func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		storage := graph["storage"]
		ok := storage.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF && strings.Contains(storage.GetReason(), says)
		for _, name := range []string{"coordinator", "containerd", "clusteraccess"} {
			ok = ok && graph[name].GetState() == supervisorv1.ComponentState_COMPONENT_STATE_READY
		}
		for _, name := range []string{"sandboxhost", "storage-agent", "sandbox-agent", "presence"} {
			c := graph[name]
			ok = ok && c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_WAITING && c.GetReason() != ""
			if c.GetStarts() != 0 {
				t.Fatalf("%s was started without what it needs: %v", name, c)
			}
		}
		return ok, sprint(graph)
	})
	// While it is tried again the reason is how it goes; between two tries it is what was wrong.
	bed.Eventually(t, time.Minute, "status says why", func(context.Context) (bool, string) {
		r := b.CLI("status")
		return r.Code != 0 && strings.Contains(r.Stdout, says) && strings.Contains(r.Stdout, "waiting for storage"), sprint(r)
	})
	_, err := b.Records().GetResource(t.Context(), &coordinatorv1.GetResourceRequest{
		Kind: resourcev1.Kind_KIND_NODE, Which: &coordinatorv1.GetResourceRequest_Name{Name: bed.NodeName},
	})
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("the cluster has a node that is not there: %v", err)
	}
}

// ends stops a runner, which takes no longer than that.
func ends(t *testing.T, b *bed.Bed, supervisor *os.Process, limit time.Duration) {
	t.Helper()
	began := time.Now()
	must(t, supervisor.Signal(syscall.SIGTERM))
	bed.Eventually(t, waitLong, "the runner ends", runnerGone(b))
	if took := time.Since(began); took > limit {
		t.Errorf("the runner ended in %v, want %v at most", took, limit)
	}
}

// SUP-3: what needs a component that cannot start waits, visibly and without an end;
// whatever holds it up, a stop ends all of it; and once the cause is gone it starts.
func TestMachine_SUP3_DependentsWaitAndSayWhy(t *testing.T) {
	b := bed.New(t, bed.Options{Supervisor: "  start_timeout: 6s"})
	broken := breakable(t, b, "storage")
	must(t, os.WriteFile(broken, nil, 0o644))
	supervisor := b.Start()
	waitsFor(t, b, "exit code 1")
	ends(t, b, supervisor, 15*time.Second)

	// It runs, and never says a word.
	script := filepath.Join(b.Paths.Root, "bin", "staddle-storage")
	works, err := os.ReadFile(script)
	must(t, err)
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nkill -STOP $$\n"), 0o755))
	supervisor = b.Start()
	waitsFor(t, b, "not ready within 6s")
	ends(t, b, supervisor, 15*time.Second)

	must(t, errors.Join(os.WriteFile(script, works, 0o755), os.Remove(broken)))
	b.Start()
	b.WaitReady()
}

// SUP-6: a component that waits may be restarted as often as somebody likes, there
// is never a second process of any, and the stop that follows ends.
func TestMachine_SUP6_RestartsOfWhatWaits(t *testing.T) {
	b := bed.New(t, bed.Options{})
	script := filepath.Join(b.Paths.Root, "bin", "staddle-storage")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nkill -STOP $$\n"), 0o755))
	supervisor := b.Start()
	bed.Eventually(t, waitLong, "storage hangs in its start", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		return graph["storage"].GetPid() != 0, sprint(graph["storage"])
	})
	for range 5 {
		restart(t, b, "sandbox-agent")
		if n := starts(t, b)["sandbox-agent"]; n != 0 {
			t.Errorf("sandbox-agent was started %d times without what it needs", n)
		}
	}
	restart(t, b, "storage") // it hears nothing
	onlyOnce(t, b, "storage", 3*time.Second)
	ends(t, b, supervisor, 15*time.Second)

	must(t, os.Remove(script)) // the installed program is started again
	b.Start()
	b.WaitReady()
	onePerComponent(t, b)
}

// onlyOnce looks for a time whether there are two processes of a component.
func onlyOnce(t *testing.T, b *bed.Bed, component string, long time.Duration) {
	t.Helper()
	began, seen := time.Now(), 0
	bed.Eventually(t, long+waitLong, "the time is over", func(context.Context) (bool, string) {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		must(t, err)
		var found []string
		for _, path := range lines {
			line, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(line), filepath.Join(b.Paths.Root, "bin", "staddle-"+component)+"\x00") {
				found = append(found, path)
			}
		}
		if len(found) > 1 {
			t.Fatalf("%s has the processes %v, want one", component, found)
		}
		seen += len(found)
		return time.Since(began) > long, sprint(found)
	})
	if seen == 0 {
		t.Errorf("%s was never seen to run: the test proves nothing", component)
	}
}
