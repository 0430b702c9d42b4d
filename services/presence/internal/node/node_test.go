package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/leash"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/presence/internal/condition"
)

// world is a node with two capabilities, in a bubble of fake time.
type world struct {
	t             *testing.T
	cfg           Config
	cluster       *fakeCluster
	link, storage *fakeCapability
	admission     *fakeAdmission
	pressure      Pressure // nil for none
	node          *Node
	stop          func()
	crash         func(cause error)
}

func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "presence.db")
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, cluster: newFakeCluster(), link: newFakeCapability(), storage: newFakeCapability(),
			admission: newFakeAdmission(),
			cfg:       Config{Name: "node1", Journal: path, TTL: 15 * time.Second, HoldDown: 5 * time.Second, Version: "v", BootID: "b"},
		}
		w.start()
		defer func() { w.stop() }()
		test(w)
	})
}

func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancelCause(w.t.Context())
	w.node = New(w.cfg, Deps{
		Cluster: w.cluster, Link: w.link, Required: []Required{{Type: "Storage", Capability: w.storage}},
		Admission: w.admission, Pressure: w.pressure, Log: slog.New(slog.DiscardHandler),
	})
	done := make(chan error, 1)
	go func() { done <- w.node.Run(ctx, func() {}) }()
	w.crash = func(cause error) {
		cancel(cause)
		<-done
		w.stop = func() {}
	}
	w.stop = func() { w.crash(context.Canceled) }
}

// after lets time pass until all have come to rest.
func (w *world) after(d time.Duration) {
	w.t.Helper()
	time.Sleep(d) // fake time
	synctest.Wait()
}

func (w *world) wantReady(when string, want bool) {
	w.t.Helper()
	status, _, _, _ := w.cluster.look()
	told := find(status, condition.Ready).GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE
	if got := w.node.Presence().GetReady(); got != want || told != want {
		w.t.Errorf("%s: presence ready %v, record ready %v, want %v: %v", when, got, told, want, status.GetConditions())
	}
}

func (w *world) up() {
	w.t.Helper()
	w.link.say(condition.Serving, "")
	w.storage.say(condition.Serving, "")
	w.after(time.Second)
	w.wantReady("all serve", true)
}

// A gateway that moved while presence was away is told anew.
func TestNode_TellsWhereItsGatewayIs(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		for _, want := range []string{"192.0.2.1:8444", "node1.lan:1", ""} {
			w.crash(errors.New("killed"))
			w.cfg.Gateway = func(own []string) string {
				if fmt.Sprint(own) != fmt.Sprint(addresses("")) {
					t.Errorf("the gateway's address is chosen of %v", own)
				}
				return want
			}
			w.start()
			w.up()
			if status, _, _, _ := w.cluster.look(); status.GetGatewayAddress() != want {
				t.Errorf("the record says %q, want %q", status.GetGatewayAddress(), want)
			}
		}
	})
}

func TestNode_IsReadyWhenAllServe(t *testing.T) {
	inBubble(t, func(w *world) {
		w.after(time.Second)
		if status, writes, _, _ := w.cluster.look(); writes != 0 {
			t.Errorf("told before anything was known: %v", status)
		}
		w.link.say(condition.Serving, "")
		w.after(time.Second)
		if w.node.Presence().GetReady() {
			t.Error("ready before storage was heard")
		}
		w.storage.say(condition.Serving, "")
		w.after(time.Second)
		w.wantReady("all serve", true)
		p := w.node.Presence()
		if p.GetSessionId() != 101 || p.GetNodeUid() != nodeUID || p.GetRegisteredAt() == nil || len(p.GetConditions()) != 2 {
			t.Errorf("presence is %v", p)
		}
		status, _, _, _ := w.cluster.look()
		if c := status.GetCapacity(); c.GetMemoryBytes() <= 0 || c.GetCpuMillicores() <= 0 || c.GetSandboxes() != maxSandboxes {
			t.Errorf("capacity is %v", c)
		}
	})
}

func TestNode_HoldsACrashDownAndTellsAStopAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		_, before, _, _ := w.cluster.look()
		w.storage.say(condition.Away, "storage does not answer")
		w.after(3 * time.Second)
		w.wantReady("crash of three seconds", true)
		w.storage.say(condition.Serving, "")
		w.after(10 * time.Second)
		w.wantReady("after the crash", true)
		if _, after, _, _ := w.cluster.look(); after != before {
			t.Errorf("a crash within the hold-down wrote %d statuses", after-before)
		}
		w.storage.say(condition.Away, "storage does not answer for 1s")
		w.after(5 * time.Second)
		w.wantReady("crash that lasts", false)
		_, before, _, _ = w.cluster.look()
		w.storage.say(condition.Away, "storage does not answer for 9s")
		w.after(time.Second)
		if _, after, _, _ := w.cluster.look(); after != before {
			t.Error("a reason that only lasts longer was written again")
		}
		w.storage.say(condition.Serving, "")
		w.after(time.Millisecond)
		w.wantReady("it is back", true)
		w.storage.say(condition.Gone, "stopping")
		w.after(time.Millisecond)
		w.wantReady("it was stopped", false)
	})
}

func TestNode_WritesNothingAtRest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		_, before, _, _ := w.cluster.look()
		w.after(time.Hour)
		_, after, opened, _ := w.cluster.look()
		if after != before || opened != 1 {
			t.Errorf("an hour at rest wrote %d statuses and opened %d sessions", after-before, opened)
		}
		w.cluster.set(func(c *fakeCluster) {
			if c.renewed < 3600/5 || c.renewed > 3600/3 {
				t.Errorf("%d renewals in an hour", c.renewed)
			}
		})
	})
}

func TestNode_WithdrawsAndComesBack(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.stop()
		status, _, _, ended := w.cluster.look()
		if !ended || find(status, condition.Ready).GetState() != resourcev1.ConditionState_CONDITION_STATE_FALSE {
			t.Errorf("after a stop the session has ended: %v, and the record says %v", ended, status.GetConditions())
		}
		w.start()
		w.after(time.Second)
		w.wantReady("started again", true)
		if again, _, opened, _ := w.cluster.look(); opened != 2 || again.GetSeq() <= status.GetSeq() {
			t.Errorf("%d sessions were opened, seq went from %d to %d", opened, status.GetSeq(), again.GetSeq())
		}
	})
}

func TestNode_TheDeathOfItsSupervisorIsNoLeave(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.crash(leash.ErrParentGone)
		status, _, opened, ended := w.cluster.look()
		if ended || find(status, condition.Ready).GetState() != resourcev1.ConditionState_CONDITION_STATE_TRUE {
			t.Errorf("after a crash the session has ended: %v, and the record says %v", ended, status.GetConditions())
		}
		w.cluster.set(func(c *fakeCluster) { c.session = 101 })
		w.start()
		w.after(time.Second)
		w.wantReady("started again", true)
		if _, _, again, _ := w.cluster.look(); again != opened {
			t.Errorf("%d sessions were opened, want the first to be resumed", again)
		}
	})
}

// A kill leaves the session open: its id is resumed, and nothing is written.
func TestNode_ResumesItsSessionAfterAKill(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		before, _, _, _ := w.cluster.look()
		w.cluster.set(func(c *fakeCluster) { c.refuse, c.deaf = fault.New(fault.Unavailable, "cut"), true })
		w.stop() // whose farewell nobody hears
		w.cluster.set(func(c *fakeCluster) { c.refuse, c.deaf, c.session, c.ended = nil, false, 101, false })
		w.start()
		w.after(time.Second)
		w.wantReady("started again", true)
		after, _, opened, _ := w.cluster.look()
		if opened != 1 {
			t.Errorf("%d sessions were opened, want the first to be resumed", opened)
		}
		since := func(s *resourcev1.NodeStatus) time.Time { return find(s, "Storage").GetSince().AsTime() }
		if !since(after).Equal(since(before)) {
			t.Errorf("storage serves since %v, and did since %v", since(after), since(before))
		}
	})
}

// What was said in a session that is over does not count in the next: it is said
// again, also when it has not changed.
func TestNode_SaysHowItIsInEachSession(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.cluster.set(func(c *fakeCluster) { c.session = 0 }) // lost, and opened anew with the next renewal
		w.after(10 * time.Second)
		w.wantReady("in the next session", true)
		w.cluster.set(func(c *fakeCluster) {
			if n := c.record.GetNode(); c.opened != 2 || n.GetStatus().GetSeq() <= n.GetPlacement().GetStatusSeq() {
				t.Errorf("%d sessions were opened, the last with status %d; the record has %d", c.opened, n.GetPlacement().GetStatusSeq(), n.GetStatus().GetSeq())
			}
		})
	})
}

func TestNode_ReportsAgainWhatDidNotArrive(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.cluster.set(func(c *fakeCluster) { c.deaf = true })
		w.storage.say(condition.Gone, "stopping")
		w.after(time.Second)
		w.cluster.set(func(c *fakeCluster) { c.deaf = false })
		w.after(resendAfter)
		w.wantReady("the report arrived at last", false)
	})
}

// A node whose disk is full says how it is.
func TestNode_ReportsWhatItCannotKeep(t *testing.T) {
	j, _, err := journal.Open(journal.Options{Path: filepath.Join(t.TempDir(), "presence.db"), Kind: "presence", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil { // whatever is to be written fails
		t.Fatal(err)
	}
	cluster := newFakeCluster()
	cluster.showLocked(&resourcev1.Node{})
	n := New(Config{Name: "node1"}, Deps{Cluster: cluster, Log: slog.New(slog.DiscardHandler)})
	s := &state{notes: &notes{journal: j}}
	n.report(t.Context(), s, &resourcev1.NodeStatus{Seq: 4}, time.Now())
	if status, _, _, _ := cluster.look(); status.GetSeq() != 4 || s.sent.GetSeq() != 4 {
		t.Errorf("the record has seq %d, sent is %d, want 4", status.GetSeq(), s.sent.GetSeq())
	}
}

func TestNode_ADeniedNodeHasNoSession(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.cluster.set(func(c *fakeCluster) { c.refuse = fault.New(fault.Denied, "the node was removed") })
		w.after(6 * time.Second)
		p := w.node.Presence()
		if p.GetReady() || p.GetSessionId() != 0 {
			t.Errorf("presence of a removed node is %v", p)
		}
	})
}

// A cordon of the node itself is told to the cluster, and whoever waits for that hears
// of it; it is no reason not to be ready. A shutdown is.
func TestNode_TellsOfCordonAndShutdown(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		w.admission.hub.Set(struct{}{}, &presencev1.Admission{Cordoned: true, CordonReason: "new disks", Holding: true})
		w.after(time.Second)
		w.wantReady("cordoned", true)
		status, _, _, _ := w.cluster.look()
		if !status.GetCordoned() || status.GetCordonReason() != "new disks" || !status.GetHolding() {
			t.Errorf("the record of a cordoned node says %v", status)
		}
		if told, _ := w.admission.told.Get(struct{}{}); !told {
			t.Error("nobody was told that the record shows the cordon")
		}
		if a := w.node.Presence().GetAdmission(); !a.GetCordoned() {
			t.Errorf("presence shows admission %v", a)
		}
		w.admission.hub.Set(struct{}{}, &presencev1.Admission{Shutdown: &presencev1.DrainProgress{}})
		w.after(time.Second)
		w.wantReady("shutting down", false)
		status, _, _, _ = w.cluster.look()
		if status.GetCordoned() || !strings.Contains(find(status, condition.Ready).GetReason(), "shut down") {
			t.Errorf("the record of a node that is shut down says %v", status)
		}
		w.admission.hub.Set(struct{}{}, &presencev1.Admission{})
		w.after(time.Second)
		w.wantReady("open again", true)
	})
}

// The session of a node on which nothing runs any more ends before the processes do:
// the coordinator may be one of them, and a session left open keeps the next boot
// waiting.
func TestNode_LeavesOnceAShutdownHasEndedAll(t *testing.T) {
	inBubble(t, func(w *world) {
		w.up()
		shutdown := func(step presencev1.DrainStep) {
			w.admission.hub.Set(struct{}{}, &presencev1.Admission{Shutdown: &presencev1.DrainProgress{Step: step}})
			w.after(time.Minute)
		}
		shutdown(presencev1.DrainStep_DRAIN_STEP_STOPPING)
		if _, _, opened, ended := w.cluster.look(); ended || opened != 1 || w.node.Presence().GetSessionId() == 0 {
			t.Errorf("while sandboxes end: opened %d sessions, ended %v, presence has %d", opened, ended, w.node.Presence().GetSessionId())
		}
		w.cluster.set(func(c *fakeCluster) { c.refuse = fault.New(fault.Unavailable, "away") })
		shutdown(presencev1.DrainStep_DRAIN_STEP_DONE)
		w.cluster.set(func(c *fakeCluster) { c.refuse = nil })
		w.link.say(condition.Away, "away") // it is tried again once the link is back
		w.link.say(condition.Serving, "")
		w.after(time.Minute)
		status, _, opened, ended := w.cluster.look()
		if id := w.node.Presence().GetSessionId(); !ended || opened != 1 || id != 0 {
			t.Errorf("all ended: opened %d sessions, ended %v, presence has %d", opened, ended, id)
		}
		if reason := find(status, condition.Ready).GetReason(); reason != goingDown {
			t.Errorf("the record says %q, want %q", reason, goingDown)
		}
		w.admission.hub.Set(struct{}{}, &presencev1.Admission{})
		w.after(time.Second)
		w.wantReady("the machine stays up", true)
		if _, _, opened, _ := w.cluster.look(); opened != 2 {
			t.Errorf("opened %d sessions, want a second", opened)
		}
	})
}

// ETC-2: the node itself knows when its session must be over.
func TestSession_EndsByItsOwnClock(t *testing.T) {
	s := session{Session: Session{ID: 1, TTL: 15 * time.Second}, sentAt: boottime.Now()}
	if !s.open(s.sentAt+14*time.Second) || s.open(s.sentAt+15*time.Second) {
		t.Error("a session of 15 s is open for another time")
	}
	if (session{}).open(0) {
		t.Error("a session that was never opened is open")
	}
}

func TestStem(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{"waiting for storage: connection refused for 12s", "waiting for storage: connection refused for 1h2m3s"},
		{"a for 1s; b for 3ms", "a for 9s; b for 1m0s"},
	} {
		if stem(c.a) != stem(c.b) {
			t.Errorf("%q and %q differ", stem(c.a), stem(c.b))
		}
	}
	if stem("waiting for storage") == stem("waiting for sandboxhost") {
		t.Error("different neighbours are the same")
	}
}
