package child

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
)

const (
	// trimGap is the least time between two looks at the files of output: what is
	// written in it is what there may be too much.
	trimGap = 20 * time.Millisecond
	// blindPeriod is the time between two looks while the kernel does not tell of
	// what is written.
	blindPeriod = time.Second
	// maxWritten is how many events may wait: all of them mean the same.
	maxWritten = 256
)

// boundOutputs keeps the files of output within their bounds while they are
// written, until ctx ends. The kernel tells it of each write, so that at rest it does
// nothing. A component that writes in a torrent is held up while its output is cut.
// Only while this whole process stands still does a file grow beyond the bound.
func (r *Runner) boundOutputs(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.followWrites(ctx)
		if ctx.Err() != nil {
			return
		}
		r.once("writes", func() { r.deps.Log.Warn("output not watched", logging.Path(r.cfg.LogDir), logging.Err(err)) })
		if backoff.Wait(ctx, blindPeriod) != nil {
			return // stopped
		}
		r.trimAll()
	}
}

var errFolderLost = errors.New("the folder is gone")

// followWrites trims after each write; it returns why it cannot.
func (r *Runner) followWrites(ctx context.Context) error {
	watcher, err := fsnotify.NewBufferedWatcher(maxWritten)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }() // nothing was written
	if err := watcher.Add(r.cfg.LogDir); err != nil {
		return err
	}
	for {
		r.trimAll()
		select {
		case e := <-watcher.Events:
			if e.Name == r.cfg.LogDir && e.Has(fsnotify.Remove|fsnotify.Rename) {
				return errFolderLost
			}
		case err := <-watcher.Errors: // too many at once, or none to be had: a look is right in any case
			r.once("events of output", func() { r.deps.Log.Warn("events of folders lost", logging.Err(err)) })
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := backoff.Wait(ctx, trimGap); err != nil {
			return err
		}
		if forget(watcher.Events, r.cfg.LogDir) {
			return errFolderLost
		}
	}
}

// forget takes all events that wait, of which a look is the answer, and reports
// whether one of them is the loss of the folder.
func forget(events <-chan fsnotify.Event, folder string) (lost bool) {
	for {
		select {
		case e := <-events:
			lost = lost || e.Name == folder && e.Has(fsnotify.Remove|fsnotify.Rename)
		default:
			return lost
		}
	}
}

func (r *Runner) trimAll() {
	for _, s := range r.cfg.Specs {
		dropped, err := r.outputs.trim(s.Name, maxOutput)
		if err != nil {
			r.once("output of "+s.Name, func() {
				r.deps.Log.Warn("output not trimmed", logging.Component(s.Name), logging.Err(err))
			})
		}
		if dropped > 0 {
			r.once("dropped output of "+s.Name, func() {
				r.deps.Log.Warn("output dropped", logging.Component(s.Name), logging.Count(int(dropped)),
					logging.Reason("it is written faster than it can be kept; the count is the first that was too much, in bytes"))
			})
		}
	}
}

// holdUp stops the process of a component until it is released. One that this
// process dies over is killed by the next supervisor, as any left-over.
func (r *Runner) holdUp(name string) (release func()) {
	var process *os.Process
	r.mu.Lock()
	if c, ok := r.children[name]; ok {
		process = c.process
	}
	r.mu.Unlock()
	send := func(sig unix.Signal) {
		if err := process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			r.deps.Log.Warn("process not signalled", logging.Component(name), logging.Err(err))
		}
	}
	if process == nil {
		return func() {}
	}
	send(unix.SIGSTOP)
	return func() { send(unix.SIGCONT) }
}
