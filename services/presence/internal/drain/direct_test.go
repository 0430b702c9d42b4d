package drain

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Without presence it is the same: a hold that ends with the boot, and done only when
// all are dead under it.
func TestDirect_HoldsAndWaitsForFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newFakeHost()
		running := &sandboxhostv1.SandboxState{Uid: "u", Name: "web", Manager: managerCluster, Status: &resourcev1.SandboxStatus{}}
		host.boxes.Set("u", running)
		var steps []presencev1.DrainStep
		ended := make(chan error, 1)
		go func() { // waited for below
			ended <- NewDirect(host, "boot-1", time.Minute).Drain(t.Context(), func(p *presencev1.DrainProgress) { steps = append(steps, p.GetStep()) })
		}()
		time.Sleep(time.Second) //nolint:forbidigo // of the bubble
		if drain, shutdown := host.standing(); drain || !shutdown {
			t.Errorf("holds: drain %v, shutdown %v, want that of a shutdown", drain, shutdown)
		}
		if h := host.holds[forShutdown]; !h.GetUntilReboot() || h.GetBootId() != "boot-1" || h.GetDeadlineBoottime() == nil {
			t.Errorf("got hold %v", h)
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v while a sandbox lives", err)
		default:
		}
		host.boxes.Set("u", &sandboxhostv1.SandboxState{Uid: "u", Name: "web", Manager: managerCluster, Held: true, Dead: true, Status: &resourcev1.SandboxStatus{}})
		if err := <-ended; err != nil || steps[len(steps)-1] != presencev1.DrainStep_DRAIN_STEP_DONE {
			t.Errorf("got %v after %v, want it done", err, steps)
		}
	})
}

func TestDirect_SaysWhyItCannot(t *testing.T) {
	host := newFakeHost()
	host.leave(fault.New(fault.Unavailable, "killed"))
	err := NewDirect(host, "boot-1", time.Minute).Drain(context.Background(), func(p *presencev1.DrainProgress) { t.Errorf("told %v", p) })
	if !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v, want Unavailable", err)
	}
}
