// Package journal owns the crash-safe notes of one process: named buckets of keys
// and values in one bbolt file, changed in transactions that are durable when
// Update returns.
//
// One goroutine writes. It takes every Update that waits into one transaction, so
// that a lone writer is not delayed and many share one sync of the disk. A file
// that is empty, cut short or garbled is kept aside and named, never silently
// taken for an empty one: each value carries a checksum, and all are read at Open.
//
// It must never hold what can be observed instead, and knows nothing about what
// the notes mean. In the trail it is where a wish becomes durable before anything
// is done about it.
package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"staddle.internal/kit/fault"
)

// lockWait is how long Open waits for another process to let go of the file: one
// that is just ending needs a moment.
const lockWait = 2 * time.Second

// Options say which journal to open. All but Log are required.
type Options struct {
	// Path of the file. Its folder must exist. Beside it lives Path+".lock".
	Path string
	// Kind says whose journal it is, such as "sandboxhost"; one of another kind
	// is refused.
	Kind string
	// Version of the format, counted from 1. The one before can be read too.
	Version int
	// Log gets a warning when a file is set aside. Nil means nowhere.
	Log *slog.Logger
}

// Recovery says what Open found.
type Recovery struct {
	// Fresh is true if the journal is new and empty.
	Fresh bool
	// SetAside is where an unreadable file was moved to, or "". The owner then
	// rebuilds its notes from its other source.
	SetAside string
	// Damage says what was wrong with that file.
	Damage string
	// Version of the format that the file had, 0 if Fresh. If it is lower than
	// ours, the owner rewrites what changed; the file counts as ours from now on.
	Version int
}

// Journal is an open journal. Its methods may be called from any goroutine.
//
// If the file cannot be read any more while it is open, because the disk fails or
// somebody cut it, each call says so from then on, and While ends: the process has to
// start anew, which sets the file aside.
type Journal struct {
	path string
	db   *bbolt.DB
	lock *os.File

	broken   atomic.Bool     // bbolt may hold its locks for ever
	whole    context.Context //nolint:containedctx // the life of the file, not a request's
	found    context.CancelCauseFunc
	requests chan *request
	closing  chan struct{}
	written  chan struct{} // closed when the writer has ended
	close    func() error
}

// Open opens the journal, or makes it. It returns fault.Conflict if another
// process has it (after a short wait), if it is of another kind, or of a version
// that cannot be read. The caller closes it.
func Open(o Options) (*Journal, Recovery, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Path == "" || o.Kind == "" || o.Version < 1 {
		return nil, Recovery{}, fault.New(fault.Invalid, "open journal %s: path, kind and version are required", o.Path)
	}
	lock, err := acquire(o.Path+".lock", lockWait)
	if err != nil {
		return nil, Recovery{}, fmt.Errorf("open journal %s: %w", o.Path, err)
	}
	db, rec, err := recoverFile(o)
	if err != nil {
		return nil, Recovery{}, errors.Join(fmt.Errorf("open journal %s: %w", o.Path, classify(err)), lock.Close())
	}
	j := &Journal{
		path: o.Path, db: db, lock: lock,
		requests: make(chan *request), closing: make(chan struct{}), written: make(chan struct{}),
	}
	j.whole, j.found = context.WithCancelCause(context.Background())
	j.close = sync.OnceValue(j.end)
	go j.write() // ends in Close, which waits for it
	return j, rec, nil
}

// Close ends the journal: changes already taken become durable, later ones are
// refused. It may be called more than once, and returns the same.
func (j *Journal) Close() error { return j.close() }

func (j *Journal) end() error {
	close(j.closing)
	<-j.written
	if err := errors.Join(j.guarded(j.db.Close), j.lock.Close()); err != nil {
		return fmt.Errorf("close journal %s: %w", j.path, err)
	}
	return nil
}

// Update runs fn and makes its changes durable, all or none. If fn returns an
// error nothing is changed and Update returns it. fn may run more than once, so
// it must do nothing but read and write tx, and must not call the journal.
//
// It returns fault.Exhausted if the disk is full, and fault.Unavailable after
// Close; in both cases nothing is changed.
func (j *Journal) Update(fn func(tx Tx) error) error {
	r := &request{fn: fn, done: make(chan outcome, 1)}
	select {
	case j.requests <- r:
	case <-j.closing:
		return fault.New(fault.Unavailable, "update journal %s: it is closed", j.path)
	}
	out := <-r.done
	if out.panicked != nil {
		panic(out.panicked)
	}
	return out.err
}

// View runs fn on a consistent state, beside any writing. It returns the error of
// fn, or what was wrong with the notes that fn read.
func (j *Journal) View(fn func(tx Tx) error) error {
	select {
	case <-j.closing:
		return fault.New(fault.Unavailable, "view journal %s: it is closed", j.path)
	default:
	}
	err := j.guarded(func() error {
		return j.db.View(func(tx *bbolt.Tx) error { return Tx{tx, &state{}}.run(fn) })
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return fault.New(fault.Unavailable, "view journal %s: it is closed", j.path)
	}
	return err
}

// While returns a context that ends with ctx, and also, with the damage as its
// cause, when the file was found broken. Whoever owns the journal runs in it, so
// that the process does not go on without its notes. The caller calls stop.
func (j *Journal) While(ctx context.Context) (inside context.Context, stop context.CancelFunc) {
	inside, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(j.whole, func() { cancel(context.Cause(j.whole)) })
	return inside, func() {
		forget()
		cancel(context.Canceled)
	}
}

// guarded runs f unless the file was found broken, or finds it so.
func (j *Journal) guarded(f func() error) error {
	if j.broken.Load() {
		return errFault
	}
	err := guard(f)
	if errors.Is(err, errFault) {
		j.broken.Store(true)
		j.found(fmt.Errorf("journal %s: %w", j.path, err))
	}
	return err
}

// classify gives errors of the disk their kind.
func classify(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.WithReason(fault.New(fault.Exhausted, "%w", err), "DISK_FULL")
	}
	return err
}
