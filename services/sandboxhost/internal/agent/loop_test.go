package agent

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func named(name string) *resourcev1.Resource {
	return record(id.NewSandbox(), func(r *resourcev1.Resource) { r.Meta.Name = name })
}

func running(s *sandboxhostv1.SandboxState) bool { return s != nil && !s.GetRemoving() }

func TestAgent_BringsASandboxToLifeAndToItsEnd(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
	w.await("status in the record", func() bool {
		return w.cluster.record(uid).GetSandbox().GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	})
	gone := proto.CloneOf(w.cluster.record(uid))
	gone.Meta.DeletingAt = timestamppb.Now()
	w.cluster.put(gone)
	w.await("end of the record", func() bool { return w.cluster.record(uid) == nil })
	w.await("end of what the host knows", func() bool { return w.host.state(uid) == nil })
}

func TestAgent_AnEmptySnapshotRemovesNothing(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	var uids []string
	for i := range 5 {
		r := named(fmt.Sprintf("s%d", i))
		uids = append(uids, r.GetMeta().GetUid())
		w.cluster.put(r)
	}
	alive := func() bool {
		for _, uid := range uids {
			if !running(w.host.state(uid)) {
				return false
			}
		}
		return true
	}
	w.await("sandboxes on the host", alive)
	w.await("statuses in the records", func() bool {
		for _, uid := range uids {
			if w.cluster.record(uid).GetSandbox().GetStatus().GetSeq() == 0 {
				return false
			}
		}
		return true
	})
	w.cluster.empty()
	w.await("questions about all of them", func() bool { gets, _ := w.cluster.counts(); return gets >= 5 })
	w.settle()
	if !alive() {
		t.Errorf("a mirror that names nothing removed something: %v", w.host.hub.Snapshot())
	}

	// Once the coordinator itself says that one is gone, and only then, it goes.
	w.cluster.drop(uids[0])
	w.cluster.empty()
	w.await("end of the one that is gone", func() bool { return w.host.state(uids[0]) == nil })
	for _, uid := range uids[1:] {
		if !running(w.host.state(uid)) {
			t.Errorf("%s was removed", uid)
		}
	}
}

func TestAgent_AFailedQuestionRemovesNothing(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
	w.cluster.setAway(true)
	w.cluster.drop(uid)
	w.await("questions", func() bool { gets, _ := w.cluster.counts(); return gets >= 3 })
	if !running(w.host.state(uid)) {
		t.Error("a question that failed removed the sandbox")
	}
	w.cluster.setAway(false)
	w.await("end of the sandbox", func() bool { return w.host.state(uid) == nil })
}

func TestAgent_ACutMirrorAddsAndRemovesNothing(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
	w.cluster.become(&clusteraccessv1.MirrorState{Term: termOne, Revision: 1, Reason: "cut"})
	w.cluster.drop(uid)
	late := named("late")
	w.cluster.put(late)
	w.host.change(uid, func(s *sandboxhostv1.SandboxState) {})
	w.stopAgent()
	w.startAgent()
	if gets, _ := w.cluster.counts(); gets != 0 || !running(w.host.state(uid)) || w.host.state(late.GetMeta().GetUid()) != nil {
		t.Errorf("acted on a mirror that is not live: %d questions, host holds %v", gets, w.host.hub.Snapshot())
	}
	w.cluster.live(termOne, 5)
	w.await("late sandbox", func() bool { return running(w.host.state(late.GetMeta().GetUid())) })
	w.await("end of the first", func() bool { return w.host.state(uid) == nil })
}

// What a node knows of a history is kept with each wish, so it is known however
// the agent, or the host, died; and a history that was put back is not taken for the old one once
// it has grown.
func TestAgent_AHistoryThatDoesNotKnowTheWishRemovesNothing(t *testing.T) {
	for _, c := range []struct {
		name     string
		known    map[string]uint64
		revision uint64
	}{
		{"another", nil, 900},
		{"put back", map[string]uint64{termOne: 3}, 5},
		{"put back and grown", map[string]uint64{termOne: 3}, 900},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.cluster.live(termOne, 10)
			w.start()
			r := named("web")
			uid := r.GetMeta().GetUid()
			w.cluster.put(r)
			w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
			w.stopAgent()
			w.cluster.knows(c.known)
			w.cluster.live(termTwo, c.revision)
			w.cluster.drop(uid)
			w.startAgent()
			w.await("distrust", func() bool { return w.foreign.Load() == 1 })
			w.settle() // work is still taken
			if !running(w.host.state(uid)) {
				t.Errorf("removed on a history that is %s", c.name)
			}
			// What was made in this history can be ended by it.
			fresh := named("fresh")
			w.cluster.put(fresh)
			w.await("fresh sandbox", func() bool { return running(w.host.state(fresh.GetMeta().GetUid())) })
			w.cluster.drop(fresh.GetMeta().GetUid())
			w.await("end of the fresh sandbox", func() bool { return w.host.state(fresh.GetMeta().GetUid()) == nil })

			w.cluster.knows(map[string]uint64{termOne: 10})
			w.cluster.live(termThree, 900)
			w.await("end of the sandbox", func() bool { return w.host.state(uid) == nil && w.foreign.Load() == 0 })
		})
	}
}

// The position of a wish contains its record: a record that the mirror's state has
// not covered yet waits for that.
func TestAgent_AWishIsMadeWhereItsRecordIs(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 10)
	w.start()
	r := named("web")
	r.Meta.Revision = 15
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.settle()
	if w.host.state(uid) != nil {
		t.Errorf("a record of revision 15 was taken at revision 10: %v", w.host.state(uid))
	}
	w.cluster.live(termTwo, 15)
	w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
	if at := w.host.state(uid).GetPosition(); at.GetTerm() != termTwo || at.GetRevision() != 15 {
		t.Errorf("position is %v, want revision 15 of the second term", at)
	}
}

func TestAgent_ConvergesAfterANeighbourWasKilled(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	shown := func() uint64 { return w.cluster.record(uid).GetSandbox().GetStatus().GetSeq() }
	w.await("status in the record", func() bool { return shown() == 1 })

	w.stopCluster()
	w.host.change(uid, func(s *sandboxhostv1.SandboxState) { s.Status.Attempt++ })
	w.startCluster()
	w.await("status after clusteraccess was away", func() bool { return shown() == 2 })

	w.stopHost()
	late := named("late")
	w.cluster.put(late)
	w.host.change(uid, func(s *sandboxhostv1.SandboxState) { s.Status.Attempt++ })
	w.startHost()
	w.await("status after the host was away", func() bool { return shown() == 3 })
	w.await("late sandbox", func() bool { return running(w.host.state(late.GetMeta().GetUid())) })
}

func TestAgent_ReportsAgainWhatClusteraccessForgot(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	shown := func() uint64 { return w.cluster.record(uid).GetSandbox().GetStatus().GetSeq() }
	w.await("status in the record", func() bool { return shown() == 1 })
	// The status was taken and never arrived: the record is as before.
	w.stopCluster()
	w.cluster.put(r)
	w.startCluster()
	w.await("status once more", func() bool { return shown() == 1 })
}

// ETC-9: a sandbox whose handling hangs delays no other.
func TestAgent_OneThatHangsDelaysNoOther(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	release := w.host.stick("stuck")
	defer release()
	w.cluster.put(named("stuck"))
	w.cluster.put(named("stuck"))
	began := time.Now()
	for i := range 20 {
		w.cluster.put(named(fmt.Sprintf("s%d", i)))
	}
	w.await("twenty others", func() bool { return w.host.hub.Len() == 20 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the others took %v", took)
	}
}

func TestAgent_TellsWhatTheHostRefuses(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	w.host.refuse("web", fault.WithReason(fault.New(fault.Denied, "host network is not allowed"), "HOST_NETWORK_NOT_ALLOWED"))
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("refusal in the record", func() bool {
		s := w.cluster.record(uid).GetSandbox().GetStatus()
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED && s.GetReason() == "HOST_NETWORK_NOT_ALLOWED"
	})
	w.settle()
	if _, reports := w.cluster.counts(); reports > 10 {
		t.Errorf("%d reports of one refusal", reports)
	}
	w.host.refuse("web", nil)
	w.await("sandbox once it is allowed", func() bool { return running(w.host.state(uid)) })
}

func TestAgent_BuriesWhatTheHostDoesNotHold(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	r := named("web")
	r.Meta.DeletingAt = timestamppb.Now()
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.start()
	w.await("end of the record", func() bool { return w.cluster.record(uid) == nil })
	if w.host.ensures() != 0 {
		t.Error("a record that is being deleted was started")
	}
}

// After a reboot a wish waits for a live snapshot that names it.
func TestAgent_ConfirmsAWishThatWaitsForTheCluster(t *testing.T) {
	w := newWorld(t)
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	state := waiting()
	state.Uid, state.Name, state.Manager = uid, "web", manager
	w.host.hub.Set(uid, state)
	w.start()
	if w.host.ensures() != 0 {
		t.Error("confirmed on a mirror that is not live")
	}
	w.cluster.live(termOne, 1)
	w.await("confirmed wish", func() bool {
		return w.host.state(uid).GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	})
}
