package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// A sandbox that was taken down with its node has not crashed: it runs again as soon as the
// node is up, however long it would wait after a crash.
func TestNode_TakenDownIsNoCrash(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	patient := spec(always, probe("c", "sleep"))
	patient.RestartBackoff = &resourcev1.RestartBackoff{Initial: durationpb.New(time.Hour), Cap: durationpb.New(time.Hour)}
	uid := ensure(t, b, "patient", patient)
	await(t, b, uid, "running", running)
	for attempt := range uint64(2) {
		b.OK("down", "--yes")
		b.Start()
		b.WaitReady()
		got := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == attempt+2 })
		if got.GetNextAt() != nil {
			t.Errorf("got %v, want no wait", got)
		}
	}
	remove(t, b, uid)
	settled(t, b)
}

// The command that takes a node down asks no containerd, which has ended by then, and runs
// pre-stop commands all the same; one that does not end is cut short, and holds nothing up.
func TestNode_TakenDownRunsPreStop(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	importFrom(t, b, serviceArchive)
	polite := &resourcev1.ContainerSpec{
		Name: "c", Image: serviceImage, Args: []string{"tcp", ":8080"}, Scratch: []*resourcev1.ScratchMount{{Volume: "work", Path: "/notes"}},
		PreStop: &resourcev1.ExecAction{Command: []string{"/service", "tell", "/notes/said", "leaving"}},
	}
	s := spec(always, polite)
	s.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "work"}}
	uid := ensure(t, b, "polite", s)
	stuck := &resourcev1.ContainerSpec{
		Name: "c", Image: serviceImage, Args: []string{"tcp", ":8080"}, PreStop: &resourcev1.ExecAction{Command: []string{"/service", "tcp", ":8081"}},
	}
	s = spec(always, stuck)
	s.TerminationGracePeriod = seconds(4)
	other := ensure(t, b, "stuck", s)
	for _, uid := range []string{uid, other} {
		await(t, b, uid, "running", running)
		bed.Eventually(t, waitLong, "it has begun", outputIs(t, b, uid, "c", 1, "open\n"))
	}
	b.OK("down", "--yes")
	file := filepath.Join(scratch(b, uid, "work"), "said")
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "leaving\n" {
		t.Errorf("it said %q (%v), want that it was run once", raw, err)
	}
	if alive := b.Workloads(); len(alive) > 0 {
		t.Errorf("workloads live: %v", alive)
	}
	b.Start()
	b.WaitReady()
	for _, uid := range []string{uid, other} {
		await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
		remove(t, b, uid)
	}
	settled(t, b)
}
