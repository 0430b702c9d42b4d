package logexport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/logs"
)

const waitLimit = 20 * time.Second

// nobody keeps no open files.
type nobody struct{}

func (nobody) Push(string, *os.File) error     { return fault.New(fault.Unavailable, "nobody keeps files") }
func (nobody) Remove(string) error             { return nil }
func (nobody) Take(string) map[string]*os.File { return nil }

// place is a node's folders.
type place struct {
	t     *testing.T
	dir   string
	store *logs.Store
	log   *slog.Logger
}

func newPlace(t *testing.T, size int64) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir(), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	p.open(size)
	return p
}

// open begins with the folders as the next process does.
func (p *place) open(size int64) {
	p.store = logs.New(logs.Config{
		Dir: filepath.Join(p.dir, "logs"), Run: filepath.Join(p.dir, "run"), MaxSize: size, KeepAttempts: 5,
		Removed: filepath.Join(p.dir, "removed"), MaxRemoved: 1 << 30,
	}, logs.Deps{Log: p.log, FDs: nobody{}})
	p.t.Cleanup(func() { _ = p.store.Close() })
}

// tend has what is kept of removed sandboxes removed when its time is over, which it is
// at once.
func (p *place) tend() {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.store.Tend(ctx)
	}()
	p.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (p *place) deps() Deps {
	return Deps{Source: p.store, Log: p.log, Name: func(id.Sandbox) (logs.Name, error) { return webName, nil }}
}

// webName is what all sandboxes are called.
var webName = logs.Name{Manager: "local", Name: "web"}

// workload is a container with its two outputs.
type workload struct {
	p   *place
	of  logs.Attempt
	out [2]*os.File
}

func (p *place) workload(attempt uint64) *workload {
	p.t.Helper()
	w := &workload{p: p, of: logs.Attempt{UID: id.NewSandbox(), Container: "main", Attempt: attempt}}
	w.open()
	return w
}

func (w *workload) open() {
	w.p.t.Helper()
	pipes, err := w.p.store.Open(w.of.UID, w.of.Container, w.of.Attempt, logs.Default)
	must(w.p.t, err)
	for i, path := range []string{pipes.Stdout, pipes.Stderr} {
		w.out[i], err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		must(w.p.t, err)
	}
	must(w.p.t, pipes.Release())
}

func (w *workload) write(stream int, text string) {
	w.p.t.Helper()
	_, err := w.out[stream].WriteString(text)
	must(w.p.t, err)
}

// end ends the workload, and waits until all is kept.
func (w *workload) end() {
	w.p.t.Helper()
	for _, f := range w.out {
		must(w.p.t, f.Close())
	}
	must(w.p.t, w.p.store.Finish(w.p.t.Context(), w.of.UID, w.of.Container, w.of.Attempt))
}

// run runs an export until stop is called.
func run(t *testing.T, e *Export) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- e.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the export ended: %v", err)
	}
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the export ended with %v", err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	limit := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		good, last := ok()
		if good {
			return
		}
		select {
		case <-limit:
			t.Fatalf("not within %v: %s; last: %.2000s", waitLimit, what, last)
		case <-tick.C:
		}
	}
}

func sprint(v ...any) string { return fmt.Sprint(v...) }
