package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/kit/config"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/supervisor/internal/machine"
)

// quick are the values of the product, faster.
func quick() Config {
	return Config{Interval: 50 * time.Millisecond, Hurry: 20 * time.Millisecond, Timeout: 200 * time.Millisecond, Misses: 3, Settle: 5 * time.Millisecond}
}

// watched is a server under a probe.
type watched struct {
	t      *testing.T
	status *rpc.Status
	path   string
	events chan machine.Event
	stop   context.CancelFunc // of the server
	wg     sync.WaitGroup
}

func watch(t *testing.T) *watched { return watchAs(t, false) }

// watchAs watches the server as one of ours, or as one of somebody else.
func watchAs(t *testing.T, plain bool) *watched {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.sock")
	listener, err := rpc.Listen(path, rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerConfig{
		Process: "storage", Log: slog.New(slog.DiscardHandler), Peers: rpc.NewPeers(config.Users{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, status: server.Status(), path: path, events: make(chan machine.Event, 1000)}
	serving, stop := context.WithCancel(t.Context())
	w.stop = stop
	w.wg.Go(func() { _ = server.Member(listener).Run(serving, func() {}) }) // it ends with the cause of serving
	asking, cancel := context.WithCancel(t.Context())
	w.wg.Go(func() { // ends with asking
		if err := Watch(asking, quick(), Target{Name: "storage", PID: 7, Socket: path, Plain: plain}, func(e machine.Event) { w.events <- e }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		stop()
		w.wg.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return w
}

// until returns the first event that is as wanted.
func (w *watched) until(what string, ok func(machine.Event) bool) machine.Event {
	w.t.Helper()
	var last machine.Event
	for limit := time.After(10 * time.Second); ; {
		select {
		case last = <-w.events:
			if last.Name != "storage" || last.PID != 7 {
				w.t.Fatalf("got %+v, want it to name the process", last)
			}
			if ok(last) {
				return last
			}
		case <-limit:
			w.t.Fatalf("waited in vain for %s, last seen %+v", what, last)
		}
	}
}

func (w *watched) untilKind(kind machine.EventKind) machine.Event {
	w.t.Helper()
	return w.until("an event", func(e machine.Event) bool { return e.Kind == kind })
}

func TestWatch_TellsReadinessAndItsReasons(t *testing.T) {
	w := watch(t)
	w.status.SetNotReady("recovering 3 volumes")
	w.until("the reason", func(e machine.Event) bool {
		return e.Kind == machine.NotServing && e.Reason == "recovering 3 volumes" && !e.External
	})
	w.status.SetExternal("never had a lease", "clusteraccess")
	w.until("the outside reason", func(e machine.Event) bool {
		return e.Kind == machine.NotServing && e.External && len(e.WaitingFor) == 1
	})
	w.status.SetReady()
	w.untilKind(machine.Serving)
	w.status.SetNotReady("disk full")
	w.until("the dip", func(e machine.Event) bool { return e.Kind == machine.NotServing && e.Reason == "disk full" })
	w.status.SetReady()
	w.untilKind(machine.Serving)
}

func TestWatch_CountsMissesOnlyAfterAFirstAnswer(t *testing.T) {
	w := watch(t)
	w.status.SetReady()
	w.untilKind(machine.Serving)
	w.stop()
	w.untilKind(machine.Silent)
	if e := w.untilKind(machine.Hung); !strings.Contains(e.Reason, "no answer") {
		t.Errorf("got %+v, want a reason", e)
	}
}

// A server of ours makes its socket anew where the path is lost. One of somebody
// else does not: whoever starts later would never reach it, while the connections
// that it has go on.
func TestWatch_LostSocketOfAForeignProcess(t *testing.T) {
	for _, loss := range []func(string) error{
		os.Remove,
		func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		w := watchAs(t, true)
		w.status.SetReady()
		w.untilKind(machine.Serving)
		if err := loss(w.path); err != nil {
			t.Fatal(err)
		}
		if e := w.untilKind(machine.Hung); !strings.Contains(e.Reason, w.path) {
			t.Errorf("got %+v, want the reason to name the socket", e)
		}
	}
}

func TestWatch_NobodyThereIsNeitherReadyNorHung(t *testing.T) {
	events := make(chan machine.Event, 100)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	target := Target{Name: "a", PID: 1, Socket: filepath.Join(t.TempDir(), "a.sock")}
	if err := Watch(ctx, quick(), target, func(e machine.Event) { events <- e }); err != nil {
		t.Fatal(err)
	}
	if len(events) > 0 {
		t.Errorf("got %+v, want nothing said before a first answer", <-events)
	}
}

func TestUntilBeat(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	for _, now := range []time.Time{at, at.Add(time.Second), at.Add(1999 * time.Millisecond)} {
		if next := now.Add(untilBeat(now, 5*time.Second)); next.Second()%5 != 0 || next.Sub(now) <= 0 {
			t.Errorf("got next beat %s after %s, want a multiple of 5 s later", next, now)
		}
	}
}
