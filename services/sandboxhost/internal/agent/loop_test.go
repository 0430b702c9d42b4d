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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
	w.cluster.become(&clusteraccessv1.MirrorState{Incarnation: "one", Revision: 1, Reason: "cut"})
	w.cluster.drop(uid)
	late := named("late")
	w.cluster.put(late)
	w.host.change(uid, func(s *sandboxhostv1.SandboxState) {})
	w.stopAgent()
	w.startAgent()
	if gets, _ := w.cluster.counts(); gets != 0 || !running(w.host.state(uid)) || w.host.state(late.GetMeta().GetUid()) != nil {
		t.Errorf("acted on a mirror that is not live: %d questions, host holds %v", gets, w.host.hub.Snapshot())
	}
	w.cluster.live("one", 5)
	w.await("late sandbox", func() bool { return running(w.host.state(late.GetMeta().GetUid())) })
	w.await("end of the first", func() bool { return w.host.state(uid) == nil })
}

func TestAgent_AnotherOrOlderHistoryRemovesNothing(t *testing.T) {
	for _, c := range []struct {
		name        string
		incarnation string
		revision    uint64
	}{{"another", "two", 900}, {"older", "one", 3}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.cluster.live("one", 10)
			w.start()
			r := named("web")
			uid := r.GetMeta().GetUid()
			w.cluster.put(r)
			w.await("sandbox on the host", func() bool { return running(w.host.state(uid)) })
			w.stopAgent() // what was seen outlives the process
			w.cluster.live(c.incarnation, c.revision)
			w.cluster.drop(uid)
			w.startAgent()
			w.await("distrust", func() bool { return !w.trusted.Load() })
			w.settle() // work is still taken
			if gets, _ := w.cluster.counts(); gets != 0 || !running(w.host.state(uid)) {
				t.Errorf("removed on a history that is %s: %d questions", c.name, gets)
			}
			w.cluster.live("one", 11)
			w.await("trust", w.trusted.Load)
			w.await("end of the sandbox", func() bool { return w.host.state(uid) == nil })
		})
	}
}

func TestAgent_ConvergesAfterANeighbourWasKilled(t *testing.T) {
	w := newWorld(t)
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
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
	w.cluster.live("one", 1)
	w.await("confirmed wish", func() bool {
		return w.host.state(uid).GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	})
}
