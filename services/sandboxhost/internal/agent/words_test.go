package agent

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// What changed comes before what is looked at without a cause, also when it was queued for
// that already; and that never waits for ever.
func TestLanes_UrgentBeforeRepair(t *testing.T) {
	a := New(Config{Node: "node1", Resync: time.Hour}, Deps{Log: quiet, Foreign: func(int) {}})
	defer a.queue.ShutDown()
	a.lookAgain("r1", "r2", "r3")
	a.look("u1", "r2")
	a.lookAgain("u1") // once is enough
	var got []string
	take := func() id.Sandbox {
		uid, _ := a.queue.Get()
		a.queue.Done(uid)
		return uid
	}
	for a.queue.Len() > 0 {
		got = append(got, string(take()))
	}
	if order := strings.Join(got, " "); order != "u1 r2 r1 r3" {
		t.Errorf("got %s, want u1 r2 r1 r3", order)
	}
	a.lookAgain("patient")
	for n := range 2 * repairTurn {
		a.look("busy")
		if take() == "patient" {
			return
		}
		if n > repairTurn+1 {
			t.Fatalf("one for repair has had no turn after %d urgent ones", n)
		}
	}
}

// A sandbox is handled by one worker at a time, and what it is given is what is known when
// its turn comes: changes in between are left out.
func TestAgent_ReadsAgainBeforeItActs(t *testing.T) {
	w := newWorld(t)
	w.cluster.live(termOne, 1)
	w.start()
	release := w.host.stick("web")
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	w.await("a worker in it", func() bool { return w.host.waiting("web") == 1 })
	for generation := range uint64(5) {
		next := proto.CloneOf(r)
		next.Meta.Generation = generation + 10
		w.cluster.put(next)
	}
	w.settle() // the others go on, and the changes were heard
	if n := w.host.waiting("web"); n != 1 {
		t.Errorf("%d workers handle one sandbox at once", n)
	}
	w.host.unstick("web")
	release()
	w.await("the newest generation", func() bool { return w.host.state(uid).GetGeneration() == 14 })
	// The last one may be given again before the host has told that it has it.
	if seen := slices.Compact(w.host.generations(uid)); !slices.Equal(seen, []uint64{2, 14}) {
		t.Errorf("the host was given generations %v, want the first and the last", seen)
	}
}

// A resync looks at everything with the streams that there are, and reports again what the
// record does not show.
func TestAgent_ResyncKeepsItsStreams(t *testing.T) {
	w := newWorld(t)
	w.resync = 20 * time.Millisecond
	w.cluster.live(termOne, 1)
	w.start()
	r := named("web")
	uid := r.GetMeta().GetUid()
	w.cluster.put(r)
	shown := func() uint64 { return w.cluster.record(uid).GetSandbox().GetStatus().GetSeq() }
	w.await("status in the record", func() bool { return shown() == 1 })
	for range 3 { // it is lost on its way, and nobody is told
		w.cluster.lose(uid)
		w.await("status once more", func() bool { return shown() == 1 })
	}
	if mirror, host := w.cluster.watches(), w.host.watches(); mirror != 1 || host != 1 {
		t.Errorf("the mirror was watched %d times and the host %d, want once each", mirror, host)
	}
}

// What belongs to another node is neither done nor spoken of.
func TestAgent_OtherNodesComeBeforeAnything(t *testing.T) {
	w := newWorld(t)
	var said lockedBuffer
	w.log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.cluster.live(termOne, 1)
	w.start()
	r := record(id.NewSandbox(), func(r *resourcev1.Resource) {
		r.Meta.Name = "stranger"
		r.GetSandbox().Placement = &resourcev1.SandboxPlacement{Node: "node2"}
	})
	w.cluster.put(r)
	w.settle()
	if w.host.state(r.GetMeta().GetUid()) != nil {
		t.Error("a sandbox of another node was started")
	}
	if text := said.String(); strings.Contains(text, r.GetMeta().GetUid()) || !strings.Contains(text, "sandbox decided") {
		t.Errorf("a sandbox of another node is spoken of, or none is:\n%s", text)
	}
}

// lockedBuffer is written to by many.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds to it.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all of it.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
