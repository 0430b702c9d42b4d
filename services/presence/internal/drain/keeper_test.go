package drain

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// world is a keeper that can be killed and started again, in a bubble of fake time.
type world struct {
	t    *testing.T
	cfg  Config
	host *fakeHost
	keep *Keeper
	kill func()
}

func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drain.db")
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cfg: Config{Journal: path, BootID: boot}, host: newFakeHost()}
		w.start()
		test(w)
		w.kill()
	})
}

func (w *world) start() {
	w.t.Helper()
	w.keep = New(w.cfg, Deps{Host: w.host, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(w.t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	keep := w.keep
	go func() { ended <- keep.Run(ctx, func() { close(ready) }) }() // kill waits for it
	w.kill = func() {
		w.t.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("keeper ended: %v", err)
		}
	}
	select {
	case <-ready:
	case err := <-ended:
		w.t.Fatalf("keeper ended: %v", err)
	}
}

func (w *world) drain(req *presencev1.DrainRequest) {
	w.t.Helper()
	if _, err := w.keep.Drain(req); err != nil {
		w.t.Fatal(err)
	}
}

// after lets time pass until all have come to rest.
func (w *world) after(d time.Duration) *presencev1.Admission {
	w.t.Helper()
	time.Sleep(d) // fake time
	synctest.Wait()
	return w.keep.Admission()
}

func (w *world) wantStep(when string, p *presencev1.DrainProgress, want presencev1.DrainStep) {
	w.t.Helper()
	if p.GetStep() != want {
		w.t.Errorf("%s: got %v, want %v", when, p, want)
	}
}

const (
	runningPhase = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	stoppedPhase = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
)

func TestKeeper_DrainSurvivesTheDeathOfBoth(t *testing.T) {
	inBubble(t, func(w *world) {
		w.host.boxes.Set("a", box("a", "cluster", runningPhase, false, false))
		w.drain(&presencev1.DrainRequest{Reason: "disks"})
		w.wantStep("at once", w.keep.Admission().GetDrain(), presencev1.DrainStep_DRAIN_STEP_CORDONING)
		if drain, _ := w.host.standing(); drain {
			t.Error("the hold was placed before the cluster was told")
		}
		w.keep.Told(true)
		w.wantStep("told", w.after(time.Millisecond).GetDrain(), presencev1.DrainStep_DRAIN_STEP_STOPPING)
		w.kill()
		w.host.leave(fault.New(fault.Unavailable, "killed"))
		w.start()
		w.wantStep("sandboxhost away", w.after(time.Minute).GetDrain(), presencev1.DrainStep_DRAIN_STEP_HOLDING)
		w.host.holds = map[sandboxhostv1.HoldPurpose]*sandboxhostv1.Hold{} // it lost its notes
		w.host.leave(nil)
		a := w.after(5 * time.Second)
		w.wantStep("both back", a.GetDrain(), presencev1.DrainStep_DRAIN_STEP_STOPPING)
		if drain, _ := w.host.standing(); !drain || !a.GetHolding() || !a.GetCordoned() || a.GetCordonReason() != "disks" {
			t.Errorf("after both were away: hold %v, %v", drain, a)
		}
		w.host.boxes.Set("a", box("a", "cluster", stoppedPhase, true, true))
		w.wantStep("dead", w.after(time.Millisecond).GetDrain(), presencev1.DrainStep_DRAIN_STEP_DONE)
	})
}

func TestKeeper_ADrainDoesNotWaitForeverForTheCluster(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{})
		w.wantStep("the cluster does not answer", w.after(tellLimit-time.Second).GetDrain(), presencev1.DrainStep_DRAIN_STEP_CORDONING)
		w.wantStep("and is not waited for", w.after(2*time.Second).GetDrain(), presencev1.DrainStep_DRAIN_STEP_DONE)
	})
}

func TestKeeper_UncordonLiftsWhateverIsAway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{})
		w.drain(&presencev1.DrainRequest{Shutdown: true})
		w.after(5 * time.Second)
		if drain, shutdown := w.host.standing(); !drain || !shutdown {
			t.Fatalf("holds: drain %v, shutdown %v, want both", drain, shutdown)
		}
		w.host.leave(fault.New(fault.Unavailable, "killed"))
		a, err := w.keep.Uncordon(&presencev1.UncordonRequest{})
		if err != nil || a.GetCordoned() || a.GetDrain() != nil || !a.GetHolding() {
			t.Errorf("uncordoned: %v, %v; want open, and holding until sandboxhost is there", a, err)
		}
		w.kill()
		w.start()
		w.after(time.Minute)
		w.host.leave(nil)
		a = w.after(5 * time.Second)
		if drain, shutdown := w.host.standing(); drain || shutdown || a.GetHolding() {
			t.Errorf("holds after uncordon: drain %v, shutdown %v, holding %v", drain, shutdown, a.GetHolding())
		}
	})
}

func TestKeeper_ShutdownEndsWithTheBootAndNeverCordons(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{Shutdown: true})
		a := w.after(time.Second)
		if a.GetCordoned() || a.GetDrain() != nil {
			t.Errorf("a shutdown made it %v", a)
		}
		w.wantStep("shutdown", a.GetShutdown(), presencev1.DrainStep_DRAIN_STEP_DONE)
		w.kill()
		w.cfg.BootID = "boot-2"
		w.host.holds = map[sandboxhostv1.HoldPurpose]*sandboxhostv1.Hold{} // as sandboxhost does
		w.start()
		if a := w.after(time.Minute); a.GetShutdown() != nil || a.GetHolding() {
			t.Errorf("after the reboot: %v", a)
		}
	})
}

// A machine that stays up after all lets its sandboxes run again, unless somebody has
// drained it.
func TestKeeper_ShutdownThatIsNotCarriedThrough(t *testing.T) {
	inBubble(t, func(w *world) {
		stayUp := func() error {
			_, err := w.keep.Uncordon(&presencev1.UncordonRequest{ShutdownOnly: true})
			return err
		}
		w.after(time.Second)
		if err := stayUp(); err != nil {
			t.Errorf("nothing to lift: %v", err)
		}
		w.drain(&presencev1.DrainRequest{})
		w.drain(&presencev1.DrainRequest{Shutdown: true})
		w.after(5 * time.Second)
		if err := stayUp(); err != nil {
			t.Fatal(err)
		}
		a := w.after(time.Second)
		if drain, shutdown := w.host.standing(); !drain || shutdown || !a.GetCordoned() || a.GetDrain() == nil || a.GetShutdown() != nil {
			t.Errorf("holds: drain %v, shutdown %v, %v; want the drain alone", drain, shutdown, a)
		}
		w.kill()
		w.cfg.Journal += "-new"
		w.host.leave(fault.New(fault.Unavailable, "killed"))
		w.start()
		w.after(time.Second)
		if err := stayUp(); !errors.Is(err, fault.Unavailable) {
			t.Errorf("without notes and without a host: got %v, want Unavailable", err)
		}
		w.host.leave(nil)
		w.after(5 * time.Second)
		if drain, _ := w.host.standing(); !drain {
			t.Error("the drain was lifted with notes that were lost")
		}
	})
}

// Nobody may lift a hold only since he lost his notes.
func TestKeeper_LostNotesAreRecovered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{Scope: cluster})
		w.after(5 * time.Second)
		w.kill()
		w.cfg.Journal += "-new"
		w.start()
		a := w.after(time.Second)
		if drain, _ := w.host.standing(); !drain || !a.GetCordoned() || a.GetDrain().GetScope() != cluster {
			t.Errorf("with new notes: hold %v, %v", drain, a)
		}
		if _, err := w.keep.Uncordon(&presencev1.UncordonRequest{}); err != nil {
			t.Fatal(err)
		}
		w.after(time.Second)
		w.kill()
		w.start()
		a = w.after(time.Minute)
		if drain, _ := w.host.standing(); drain || a.GetCordoned() {
			t.Errorf("after uncordon and a restart: hold %v, %v", drain, a)
		}
	})
}

func TestKeeper_PlacesAHoldOnceAndAgainWhenItIsGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{})
		w.drain(&presencev1.DrainRequest{})
		w.after(10 * time.Minute)
		w.host.mu.Lock()
		placed := w.host.placed
		w.host.mu.Unlock()
		if placed != 1 {
			t.Errorf("the hold was placed %d times, want once", placed)
		}
		w.host.change(forDrain, nil) // somebody meddles
		w.after(0)
		if drain, _ := w.host.standing(); !drain {
			t.Error("a hold that was taken away is not placed again")
		}
	})
}

// Nothing is asked for at rest, drained or not, and what somebody else does to the holds
// is undone at once all the same.
func TestKeeper_AsksForNothingAtRest(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, when := range []string{"open", "drained", "open again"} {
			switch when {
			case "drained":
				w.drain(&presencev1.DrainRequest{})
				w.keep.Told(true)
			case "open again":
				if _, err := w.keep.Uncordon(&presencev1.UncordonRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			w.after(tellLimit)
			before := w.host.questions()
			w.after(24 * time.Hour)
			if n := w.host.questions() - before; n != 0 {
				t.Errorf("%s: the holds were asked for %d times in a day at rest", when, n)
			}
			if when == "open again" { // before, nobody knows what was asked for
				w.host.change(forDrain, holdOf(forDrain, &presencev1.DrainRecord{BootId: boot}))
				w.after(0)
				if drain, _ := w.host.standing(); drain {
					t.Errorf("%s: a hold that nobody asked for stands", when)
				}
			}
		}
	})
}

func TestKeeper_CollectsTroubles(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain(&presencev1.DrainRequest{})
		b := box("a", "cluster", resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING, true, false)
		b.Trouble = "release: device is busy"
		w.after(5 * time.Second)
		w.host.boxes.Set("a", b)
		p := w.after(time.Millisecond).GetDrain()
		if len(p.GetWaiting()) != 1 || !strings.Contains(p.GetWaiting()[0].GetMessage(), "busy") {
			t.Errorf("waiting lists %v", p.GetWaiting())
		}
		w.host.boxes.Set("a", box("a", "cluster", stoppedPhase, true, true))
		p = w.after(time.Millisecond).GetDrain()
		w.wantStep("over", p, presencev1.DrainStep_DRAIN_STEP_DONE)
		if len(p.GetTroubles()) != 1 || !strings.Contains(p.GetTroubles()[0].GetMessage(), "busy") {
			t.Errorf("troubles are %v, want what was hard", p.GetTroubles())
		}
	})
}

func TestKeeper_ChangesNothingThatItCannotWrite(t *testing.T) {
	k := New(Config{}, Deps{Log: slog.New(slog.DiscardHandler)}) // its journal is not open
	if _, err := k.Cordon("x"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("cordon without a journal: %v, want Unavailable", err)
	}
	if a := k.Admission(); !proto.Equal(a, &presencev1.Admission{}) {
		t.Errorf("it is %v all the same", a)
	}
}
