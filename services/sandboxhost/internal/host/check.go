package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/inventory"
)

const (
	// restLimit is how long a check waits for sandboxes to come to rest, and mendLimit
	// for the differences to be gone; checkPause is the time between two looks.
	restLimit  = 3 * time.Second
	mendLimit  = 20 * time.Second
	checkPause = 200 * time.Millisecond
	// mendRounds is how often what is left is tried again.
	mendRounds = 3
)

// Report is what a check found.
type Report struct {
	// Findings are the differences, ordered by sandbox, kind and name.
	Findings []Finding
	// Uncompared are the sandboxes that never came to rest.
	Uncompared []inventory.Stock
	// Sandboxes and Objects are how many were compared.
	Sandboxes, Objects int
	// Version of the runtime.
	Version string
}

// Finding is one difference and what became of it.
type Finding struct {
	inventory.Difference
	// SandboxName is the name of its sandbox, empty if none is known.
	SandboxName string
	// Fixed says that it was mended, Err why it was not. Both are unset without fix.
	Fixed bool
	Err   error
}

// look is one comparison.
type look struct {
	stocks      map[id.Sandbox]inventory.Stock
	objects     int
	differences []inventory.Difference
}

// Check compares the node with the notes, and with fix mends it. All rules of
// CheckService.CheckHost hold.
func (h *Host) Check(ctx context.Context, fix bool) (Report, error) {
	version, err := h.deps.Engine.Version(ctx)
	if err != nil {
		return Report{}, err
	}
	seen, err := h.lookTwice(ctx)
	if err != nil {
		return Report{}, err
	}
	report := Report{Objects: seen.objects, Version: version}
	for _, uid := range slices.Sorted(maps.Keys(seen.stocks)) {
		if s := seen.stocks[uid]; s.Quiet {
			report.Sandboxes++
		} else {
			report.Uncompared = append(report.Uncompared, s)
		}
	}
	for _, d := range seen.differences {
		report.Findings = append(report.Findings, Finding{Difference: d, SandboxName: seen.stocks[d.UID].Name})
	}
	if !fix || len(seen.differences) == 0 {
		return report, nil
	}
	return report, h.mend(ctx, report.Findings)
}

// lookTwice returns the differences that stay. A sandbox that is in the middle of a
// step is given some time to come to rest.
func (h *Host) lookTwice(ctx context.Context) (look, error) {
	deadline := time.Now().Add(restLimit)
	for {
		first, err := h.compare(ctx)
		if err != nil {
			return look{}, err
		}
		busy := slices.ContainsFunc(slices.Collect(maps.Values(first.stocks)), func(s inventory.Stock) bool { return !s.Quiet })
		if len(first.differences) == 0 && (!busy || time.Now().After(deadline)) {
			return first, nil
		}
		if err := backoff.Wait(ctx, checkPause); err != nil {
			return look{}, err
		}
		if busy && time.Now().Before(deadline) {
			continue
		}
		second, err := h.compare(ctx)
		second.differences = inventory.Stayed(first.differences, second.differences)
		return second, err
	}
}

// compare is one look. Only what is at rest before and after it counts.
func (h *Host) compare(ctx context.Context) (look, error) {
	before, err := h.stocks(ctx)
	if err != nil {
		return look{}, err
	}
	found, err := h.deps.Engine.Inventory(ctx)
	if err != nil {
		return look{}, err
	}
	after, err := h.stocks(ctx)
	if err != nil {
		return look{}, err
	}
	stocks := steady(before, after)
	return look{stocks: stocks, objects: len(found), differences: inventory.Compare(stocks, h.deps.Engine.Parts, found)}, nil
}

// steady takes those for quiet that were so all the time.
func steady(before, after map[id.Sandbox]inventory.Stock) map[id.Sandbox]inventory.Stock {
	stocks := maps.Clone(after)
	for uid, s := range after {
		b, known := before[uid]
		s.Quiet = s.Quiet && known && b.Quiet && b.Seq == s.Seq
		stocks[uid] = s
	}
	for uid, s := range before {
		if _, known := after[uid]; !known {
			s.Quiet = false
			stocks[uid] = s
		}
	}
	return stocks
}

// stocks asks every keeper.
func (h *Host) stocks(ctx context.Context) (map[id.Sandbox]inventory.Stock, error) {
	h.mu.Lock()
	open, keepers := h.open, maps.Clone(h.keepers)
	h.mu.Unlock()
	if !open {
		return nil, errNotOpen
	}
	stocks := map[id.Sandbox]inventory.Stock{}
	for uid, k := range keepers {
		a := k.request(ctx, letter{stock: true})
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case a.err != nil:
			stocks[uid] = inventory.Stock{UID: uid, Activity: "its keeper is busy"}
		default:
			stocks[uid] = a.stock
		}
	}
	return stocks, nil
}

// mend has every difference mended by whom it belongs to, and notes what became of
// it. What one round leaves another may remove: a folder of a task goes when its
// container has gone.
func (h *Host) mend(ctx context.Context, findings []Finding) error {
	deadline := time.Now().Add(mendLimit)
	var errs map[id.Sandbox]error
	var now look
	open := findings
	for round := 0; round < mendRounds && len(open) > 0; round++ {
		errs = h.mendAll(ctx, open)
		var err error
		if now, err = h.settle(ctx, open, deadline); err != nil {
			return err
		}
		open = slices.DeleteFunc(slices.Clone(open), func(f Finding) bool { return !f.Mendable() || now.mended(f) })
	}
	for i := range findings {
		f := &findings[i]
		f.Fixed = now.mended(*f)
		switch {
		case f.Fixed:
			h.log().Warn("host mended", f.UID.Attr(), logging.Component(f.Name))
		case errs[f.UID] != nil:
			f.Err = errs[f.UID]
		case !f.Mendable():
			f.Err = fault.New(fault.Conflict, "it cannot be made while the containers run")
		default:
			f.Err = fault.New(fault.Unavailable, "it was not mended within %s", mendLimit)
		}
	}
	return nil
}

// settle looks until the sandboxes of all findings are at rest or gone, or the
// deadline has come.
func (h *Host) settle(ctx context.Context, findings []Finding, deadline time.Time) (look, error) {
	for {
		now, err := h.compare(ctx)
		busy := slices.ContainsFunc(findings, func(f Finding) bool {
			s, known := now.stocks[f.UID]
			return known && !s.Quiet
		})
		if err != nil || !busy || time.Now().After(deadline) {
			return now, err
		}
		if err := backoff.Wait(ctx, checkPause); err != nil {
			return look{}, err
		}
	}
}

// mended says whether a difference is gone, as far as its sandbox can be compared.
func (l look) mended(f Finding) bool {
	s, known := l.stocks[f.UID]
	return (!known || s.Quiet) && len(inventory.Stayed(l.differences, []inventory.Difference{f.Difference})) == 0
}

// mendAll begins with what all sandboxes share, and goes on past failures. The
// errors are by sandbox.
func (h *Host) mendAll(ctx context.Context, findings []Finding) map[id.Sandbox]error {
	errs := map[id.Sandbox]error{}
	byOwner := map[id.Sandbox][]inventory.Object{}
	for _, f := range findings {
		switch {
		case f.Kind == inventory.Network:
			errs[f.UID] = errors.Join(errs[f.UID], h.deps.Engine.Mend(ctx))
		case f.UID == "":
			errs[f.UID] = errors.Join(errs[f.UID], h.deps.Engine.Reclaim(ctx, f.Object))
		case f.Missing:
			byOwner[f.UID] = slices.Concat(byOwner[f.UID]) // it looks, and makes it again
		default:
			byOwner[f.UID] = append(byOwner[f.UID], f.Object)
		}
	}
	for uid, left := range byOwner {
		errs[uid] = h.reclaim(ctx, uid, left)
	}
	return errs
}

// reclaim has the keeper of a sandbox remove what is left over, and look.
func (h *Host) reclaim(ctx context.Context, uid id.Sandbox, left []inventory.Object) error {
	k, err := h.keeperOrStray(uid)
	if err != nil {
		return err
	}
	_, err = k.ask(ctx, letter{errand: func(ctx context.Context) error {
		var errs []error
		for _, o := range left {
			errs = append(errs, h.deps.Engine.Reclaim(ctx, o))
		}
		return errors.Join(errs...)
	}})
	return err
}

// keeperOrStray returns the keeper of a sandbox, or makes one that removes all that
// there is of it, as adoption does for what nobody wishes for.
func (h *Host) keeperOrStray(uid id.Sandbox) (*keeper, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		return nil, errNotOpen
	}
	if k := h.keepers[uid]; k != nil {
		return k, nil
	}
	k := newKeeper(h, uid, "")
	k.rec, k.orphan = strayRecord(uid, h.cfg.BootID, h.now()), true
	k.rec.Status.Seq, k.rec.Status.Node = h.seqBase+1, h.cfg.Node
	if len(h.births) == cap(h.births) { // whoever sends holds mu
		return nil, fault.New(fault.Unavailable, "sandbox %s: too many come at once", uid)
	}
	h.keepers[uid] = k
	h.hub.Set(k.uid, k.state()) // before it runs, and has a newer one
	h.births <- k
	return k, nil
}
