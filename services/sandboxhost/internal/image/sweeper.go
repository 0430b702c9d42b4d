package image

import (
	"context"
	"errors"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/filesystem"
)

const (
	// retryEvery is after how long a sweep that failed is done again.
	retryEvery = 20 * time.Second
	// settleTime is how long changes of sandboxes are let settle before it is noted which
	// images they need: it is not urgent, and many come at once.
	settleTime = 2 * time.Second
	// agePeriod is how often images are listed to find old ones, where rules have them go.
	agePeriod = time.Hour
	// sweepLimit bounds one sweep; what is left is for the next.
	sweepLimit = 5 * time.Minute
)

// SweeperDeps are what a Sweeper works with.
type SweeperDeps struct {
	// Users returns what needs images, or fault.Unavailable while that is not known.
	Users func() ([]User, error)
	// Changed tells that Users may have changed.
	Changed <-chan struct{}
}

// Sweeper removes images that nothing needs, as its rules say, and notes at each image
// when it was needed last; and what pulls left that were cut and not gone on with in
// time. One goroutine does all of it. It has no clock of its own for the disk: Measured
// tells it.
type Sweeper struct {
	store *Store
	rules Rules
	deps  SweeperDeps
	asked chan chan struct{}
	full  chan struct{} // a disk asks for a cleaning

	noted   []string // references of users, as they were noted last
	ageDue  time.Time
	said    string // problem or shortage that was told last
	failing string
}

// NewSweeper returns one that does nothing before Run. It has the store ask for room
// when the disk is full.
func NewSweeper(store *Store, rules Rules, deps SweeperDeps) *Sweeper {
	w := &Sweeper{store: store, rules: rules, deps: deps, asked: make(chan chan struct{}), full: make(chan struct{}, 1)}
	store.setRoom(w)
	return w
}

// Run works until ctx ends.
func (w *Sweeper) Run(ctx context.Context, ready func()) error {
	ready()
	age := time.NewTicker(agePeriod)
	defer age.Stop()
	settled := time.NewTimer(0) // notes at start what is needed now
	defer settled.Stop()
	parts := time.NewTimer(0) // removes at start what pulls of another life left
	defer parts.Stop()
	settling := true
	for {
		var answer chan struct{}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.deps.Changed:
			if !settling {
				settling = true
				settled.Reset(settleTime)
			}
			continue
		case <-parts.C:
			w.sweepParts(ctx, parts)
			continue
		case <-w.store.cut:
			w.sweepParts(ctx, parts)
			continue
		case <-settled.C:
			settling = false
		case <-age.C:
		case <-w.full:
		case answer = <-w.asked:
		}
		err := w.sweep(ctx)
		w.report(err)
		if err != nil {
			settling = true
			settled.Reset(retryEvery)
		}
		if answer != nil {
			close(answer)
		}
	}
}

// sweepParts removes the parts whose time is over, and has the timer end when that of
// the next ones is.
func (w *Sweeper) sweepParts(ctx context.Context, due *time.Timer) {
	limited, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	next, err := w.store.sweepParts(limited, time.Now())
	w.report(err)
	switch {
	case err != nil:
		due.Reset(retryEvery)
	case !next.IsZero():
		due.Reset(time.Until(next) + time.Second) // ends are noted in whole seconds
	default:
		due.Stop()
	}
}

// Measured is told how full disks are. It has a sweep done soon if one of them asks for a
// cleaning, and never waits.
func (w *Sweeper) Measured(disks []filesystem.Space) {
	if _, full := w.rules.fullest(disks, false); !full {
		return
	}
	select {
	case w.full <- struct{}{}:
	default: // it will look anyway
	}
}

// Clean has a sweep done and waits for it, or for the end of ctx.
func (w *Sweeper) Clean(ctx context.Context) {
	answer := make(chan struct{})
	select {
	case w.asked <- answer:
	case <-ctx.Done():
		return
	}
	select {
	case <-answer:
	case <-ctx.Done():
	}
}

// report tells a problem once; that nobody can be asked yet is told by others.
func (w *Sweeper) report(err error) {
	switch {
	case err == nil:
		w.failing = ""
	case err.Error() != w.failing && !errors.Is(err, fault.Unavailable) && !errors.Is(err, context.Canceled):
		w.failing = err.Error()
		w.store.deps.Log.Warn("images not cleaned", logging.Err(err))
	}
}

// sweep notes what is needed, and removes what the rules say. A question that failed
// removes nothing.
func (w *Sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	users, err := w.deps.Users()
	if err != nil {
		return err
	}
	if err := w.note(ctx, users); err != nil {
		return err
	}
	disks, err := w.store.disks(ctx)
	if err != nil {
		return err
	}
	_, full := w.rules.fullest(disks, false)
	if now := time.Now(); !full && (w.rules.MaxAge == 0 || now.Before(w.ageDue)) {
		w.said = ""
		return nil
	}
	w.ageDue = time.Now().Add(agePeriod)
	return w.clean(ctx, full)
}

// clean removes one image after the other, and measures after each what that gave.
func (w *Sweeper) clean(ctx context.Context, full bool) error {
	stays := map[string]bool{} // what could not be removed in this round
	for ctx.Err() == nil {
		disks, err := w.store.disks(ctx)
		if err != nil {
			return err
		}
		disk, stillFull := w.rules.fullest(disks, full)
		full = full && stillFull
		since := time.Now()
		all, records, err := w.kept(ctx)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(k Kept) bool { return stays[k.Name] })
		victim, found := w.rules.Next(since, full, all)
		if !found {
			w.shortage(disk, full)
			return nil
		}
		for _, name := range victim.Names {
			if err := w.take(ctx, records[name], since, victim.Why); err != nil {
				return err
			}
			stays[name] = true // if it does, it is not tried again in this round
		}
	}
	return context.Cause(ctx)
}

// take removes one name. That somebody needs it after all is no failure.
func (w *Sweeper) take(ctx context.Context, record images.Image, since time.Time, why string) error {
	c, err := w.store.deps.Client()
	if err != nil {
		return err
	}
	err = w.store.take(ctx, c, record, since, why)
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// shortage says once that a full disk has no image left to remove.
func (w *Sweeper) shortage(d filesystem.Space, full bool) {
	if !full {
		w.said = ""
		return
	}
	if w.said == d.Path {
		return
	}
	w.said = d.Path
	w.store.deps.Log.Warn("disk full, and no image may be removed", logging.Path(d.Path), logging.Reason(d.String()))
}

// kept lists the images as the decision needs them, with their records.
func (w *Sweeper) kept(ctx context.Context) ([]Kept, map[string]images.Image, error) {
	users, err := w.deps.Users()
	if err != nil {
		return nil, nil, err
	}
	c, err := w.store.deps.Client()
	if err != nil {
		return nil, nil, err
	}
	return w.store.kept(ctx, c, users)
}

func (s *Store) kept(ctx context.Context, c *containerd.Client, users []User) ([]Kept, map[string]images.Image, error) {
	list, err := c.ImageService().List(ctx)
	if err != nil {
		return nil, nil, fault.New(fault.Unavailable, "list images: %w", err)
	}
	needed := wantedBy(users)
	var all []Kept
	records := map[string]images.Image{}
	for _, record := range list {
		l := labelsOf(record)
		k := Kept{
			Name: record.Name, Digest: record.Target.Digest, Pinned: l.pinned,
			Imported: l.imported, LastUsed: later(l.used, s.uses.last(record.Name)),
		}
		if by := needed.of(record); len(by) > 0 {
			k.User = by[0]
		}
		all, records[record.Name] = append(all, k), record
	}
	return all, records, nil
}

// note keeps at each image whether a sandbox needs it, and when the last one went that
// did, whenever that changes. Nothing is written at rest.
func (w *Sweeper) note(ctx context.Context, users []User) error {
	refs := make([]string, 0, len(users))
	for _, u := range users {
		refs = append(refs, u.Image)
	}
	slices.Sort(refs)
	refs = slices.Compact(refs)
	if w.noted != nil && slices.Equal(refs, w.noted) {
		return nil
	}
	c, err := w.store.deps.Client()
	if err != nil {
		return err
	}
	list, err := c.ImageService().List(ctx)
	if err != nil {
		return fault.New(fault.Unavailable, "list images: %w", err)
	}
	needed := wantedBy(users)
	for _, record := range list {
		value, change := noteOf(labelsOf(record).now, len(needed.of(record)) > 0, time.Now())
		if !change {
			continue
		}
		if err := setLabel(ctx, c, record.Name, usedLabel, value); err != nil && !errdefs.IsNotFound(err) {
			return fault.New(fault.Unavailable, "note use of image %s: %w", record.Name, err)
		}
	}
	if needed.present(list) { // one that is still to be pulled is noted once it is there
		w.noted = refs
	}
	return nil
}

// noteOf says what is noted at an image, and whether that is anything new.
func noteOf(noted, needed bool, now time.Time) (value string, change bool) {
	switch {
	case needed == noted:
		return "", false
	case needed:
		return nowValue, true
	}
	return now.UTC().Format(time.RFC3339), true
}
