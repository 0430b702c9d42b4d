package e2e

import (
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
