// Package logexport gives what workloads write to others, line by line: as files in
// the format of CRI, which shippers for Kubernetes read, and over OTLP.
//
// Exports are derived from what package logs keeps, each with an offset of its own
// that outlives this process. They follow it like any other reader: a place that is
// full, slow or away makes an export late, and never holds up a workload or what
// is kept of it. It must never touch a pipe or a segment. In the trail it stands behind
// package logs.
package logexport

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// again is how an export that failed is tried again.
var again = backoff.Policy{Initial: time.Second, Cap: 30 * time.Second, Stable: time.Minute}

// Source is what is exported: a *logs.Store.
type Source interface {
	ListAll() ([]logs.Attempt, error)
	Ended(of logs.Attempt) bool
	AttemptDir(of logs.Attempt) string
	Read(ctx context.Context, at logs.Position, mode logs.Mode, emit func(logs.Chunk) error) error
	Watch(w logs.Watcher)
}

// Deps are what an export works with.
type Deps struct {
	// Source has the output.
	Source Source
	// Name finds what a sandbox is called. fault.NotFound means that nobody knows it.
	Name func(uid id.Sandbox) (logs.Name, error)
	// Log gets what could not be exported.
	Log *slog.Logger
}

// offsets are how far both streams of an attempt were exported: standard output first.
type offsets [2]int64

func of(stderr bool) int {
	if stderr {
		return 1
	}
	return 0
}

// sink takes the records of one attempt. One goroutine has it.
type sink interface {
	// begin finds how far it came. Done says that it had all of an attempt that has ended.
	begin(ctx context.Context) (at offsets, done bool, err error)
	// take takes a record.
	take(ctx context.Context, r record) error
	// idle is called when nothing more is there now.
	idle(ctx context.Context) error
	// finish is called when nothing more will come.
	finish(ctx context.Context) error
	// close lets go of everything and keeps how far it came.
	close() error
}

// kind is one way of exporting.
type kind interface {
	// name of it, for people.
	name() string
	// most is how many bytes of a line make one record.
	most() int
	// open returns where the records of an attempt go. It opens nothing yet.
	open(of logs.Attempt) sink
	// remove removes what was exported of one attempt, or of all if container is empty.
	remove(of logs.Attempt) error
	// sweep removes what was exported of sandboxes that are not in kept.
	sweep(kept map[id.Sandbox]bool) error
	// close lets go of what all sinks have in common.
	close() error
}

// gone is why bytes are missing that the source does not have.
const gone = "it was not kept long enough, or the disk was full"

// Export follows all attempts of a node.
type Export struct {
	kind kind
	deps Deps
	lost atomic.Int64

	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // it is that of Run; nil before and after
	knows bool            // there is a task for all that is not exported yet
	tasks map[logs.Attempt]*task
	wg    sync.WaitGroup
}

// task exports one attempt.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	again  bool // more was opened while it came to its end
}

// newExport is told of what goes from now on, so that nothing goes before Run has looked
// at it.
func newExport(k kind, deps Deps) *Export {
	e := &Export{kind: k, deps: deps, tasks: map[logs.Attempt]*task{}}
	deps.Source.Watch(e)
	return e
}

// Name of the kind of export: "cri" or "otlp".
func (e *Export) Name() string { return e.kind.name() }

// Lost is how many bytes of output this export does not have and never will, since
// this process began.
func (e *Export) Lost() int64 { return e.lost.Load() }

// stopLimit bounds how long the end of this process waits for a place that does not answer.
const stopLimit = 2 * time.Second

// Run exports until ctx ends.
func (e *Export) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.mu.Lock()
	e.ctx = ctx
	e.mu.Unlock()
	all, err := e.deps.Source.ListAll()
	if err != nil {
		return err
	}
	kept := map[id.Sandbox]bool{}
	for _, a := range all {
		kept[a.UID] = true
		e.Opened(a)
	}
	e.mu.Lock()
	e.knows = true
	e.mu.Unlock()
	if err := e.kind.sweep(kept); err != nil {
		e.deps.Log.Warn("old exports not removed", logging.Component(e.Name()), logging.Err(err))
	}
	ready()
	<-ctx.Done()
	e.mu.Lock()
	e.ctx, e.knows = nil, false
	e.mu.Unlock()
	stopped := make(chan struct{})
	go func() { // ends with the tasks
		e.wg.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(stopLimit):
		e.deps.Log.Warn("export still busy", logging.Component(e.Name()))
	}
	return errors.Join(context.Cause(ctx), e.kind.close())
}

// Opened is for package logs.
func (e *Export) Opened(of logs.Attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		return
	}
	if t, ok := e.tasks[of]; ok {
		t.again = true
		return
	}
	ctx, cancel := context.WithCancel(e.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	e.tasks[of] = t
	e.wg.Go(func() {
		defer close(t.done)
		defer cancel()
		e.work(ctx, of, t)
	})
}

// Removing is for package logs.
func (e *Export) Removing(of logs.Attempt) {
	e.remove(of, func(a logs.Attempt) bool { return a == of })
}

// RemovingAll is for package logs.
func (e *Export) RemovingAll(uid id.Sandbox) {
	e.remove(logs.Attempt{UID: uid}, func(a logs.Attempt) bool { return a.UID == uid })
}

// Busy is for package logs.
func (e *Export) Busy(uid id.Sandbox) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.tasks {
		if a.UID == uid {
			return true
		}
	}
	// A task that is cut off by the end of Run is over, and its work is not: the next process
	// goes on with it.
	return !e.knows || e.ctx.Err() != nil
}

// cancelLimit bounds how long a removal waits for exports that were told to stop.
const cancelLimit = 200 * time.Millisecond

// remove ends the tasks of what is removed and then removes what they wrote, beside
// the caller: a place that does not answer must not hold it up.
func (e *Export) remove(what logs.Attempt, ours func(logs.Attempt) bool) {
	e.mu.Lock()
	var tasks []*task
	for a, t := range e.tasks {
		if ours(a) {
			tasks = append(tasks, t)
		}
	}
	e.mu.Unlock()
	if len(tasks) > 0 && what.Container == "" {
		e.deps.Log.Warn("export cut off", append(attrs(what, e.Name()), logging.Reason("there is no room to keep its output until all of it was exported"))...)
	}
	for _, t := range tasks {
		t.cancel()
	}
	waitAll(tasks)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		return // the next process removes it
	}
	e.wg.Go(func() {
		for _, t := range tasks {
			<-t.done
		}
		if err := e.kind.remove(what); err != nil {
			e.deps.Log.Warn("export not removed", what.UID.Attr(), logging.Component(e.Name()), logging.Err(err))
		}
	})
}

func waitAll(tasks []*task) {
	timer := time.NewTimer(cancelLimit)
	defer timer.Stop()
	for _, t := range tasks {
		select {
		case <-t.done:
		case <-timer.C:
			return
		}
	}
}

// work exports one attempt to its end, however often that fails.
func (e *Export) work(ctx context.Context, of logs.Attempt, t *task) {
	for failed := 0; ; {
		begun := time.Now()
		err := e.follow(ctx, of)
		if ctx.Err() == nil && err != nil && !errors.Is(err, fault.NotFound) {
			failed = again.Next(failed, time.Since(begun))
			delay := again.Delay(failed, rand.Float64()) //nolint:gosec // jitter
			if failed == 1 {
				e.deps.Log.Warn("export held up", append(attrs(of, e.Name()), logging.Err(err), logging.RetryIn(delay))...)
			}
			if backoff.Wait(ctx, delay) == nil {
				continue
			}
		}
		if e.over(ctx, of, t) {
			return
		}
	}
}

// over forgets a task unless there is more for it.
func (e *Export) over(ctx context.Context, of logs.Attempt, t *task) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.again && ctx.Err() == nil {
		t.again = false
		return false
	}
	delete(e.tasks, of)
	return true
}

// follow exports what comes until the attempt has ended.
func (e *Export) follow(ctx context.Context, a logs.Attempt) (err error) {
	s := e.kind.open(a)
	defer func() { err = errors.Join(err, s.close()) }()
	at, done, err := s.begin(ctx)
	if err != nil || done && e.deps.Source.Ended(a) {
		return err
	}
	take := func(r record) error { return s.take(ctx, r) }
	cutters := [2]lines{
		{most: e.kind.most(), take: take, offset: at[0]},
		{most: e.kind.most(), take: take, offset: at[1], stderr: true},
	}
	mode := logs.Mode{Follow: true, Timed: true, Tail: -1, Idle: func() error { return s.idle(ctx) }}
	if err := e.deps.Source.Read(ctx, position(a, at), mode, func(c logs.Chunk) error { return cutters[of(c.Stderr)].add(c) }); err != nil {
		return err
	}
	for i := range cutters {
		if err := cutters[i].flush(); err != nil {
			return err
		}
	}
	return s.finish(ctx)
}

func position(a logs.Attempt, at offsets) logs.Position {
	return logs.Position{
		UID: a.UID, Container: a.Container, Attempt: a.Attempt,
		Stdout: true, Stderr: true, StdoutOffset: at[0], StderrOffset: at[1],
	}
}

// missing tells of bytes that an export will never have.
func (e *Export) missing(a logs.Attempt, r record, from int64, why string) {
	n := r.offset - from
	e.lost.Add(n)
	e.deps.Log.Warn("output not exported", append(attrs(a, e.Name()), slog.Int("stream", of(r.stderr)+1),
		slog.Int64("offset", from), slog.Int64("bytes", n), logging.Reason(why))...)
}

func attrs(a logs.Attempt, export string) []any {
	return []any{a.UID.Attr(), slog.String("container", a.Container), logging.Attempt(int64(a.Attempt)), logging.Component(export)}
}
