// Package idrange owns the ids of users and groups that sandboxes with a user
// namespace have on the node: one range of 65536 per sandbox, of a pool that
// node.yaml names, and never one range for two sandboxes.
//
// Claims are noted in a ledger by the sandbox's uid and are freed by uid only.
// After a start the ledger is compared with the namespaces that are really there, so
// that no range is given out twice even if the ledger was lost. It must never decide
// which sandbox has a user namespace, and never make one. In the trail it stands
// before the step pin-namespaces, and is freed at the end of release-sandbox.
package idrange

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
)

// Size is how many ids a sandbox has. A range begins at a multiple of it, so two
// ranges are the same or have nothing in common.
const Size = 1 << 16

// The ledger's own kind and version.
const (
	ledgerKind    = "sandbox-ids"
	ledgerVersion = 1
	bucket        = "ranges"
)

// Config says which ranges a node has.
type Config struct {
	// First id of the first range, a multiple of Size.
	First uint32
	// Ranges is how many follow each other; 0 means none.
	Ranges int
	// Ledger is the file of claims.
	Ledger string
}

// Pool is the ranges of one node.
type Pool struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	ledger  *journal.Journal
	byUID   map[id.Sandbox]uint32 // the first id
	byFirst map[uint32]id.Sandbox
	last    int // number of the range given out last; the next one is looked for behind it
}

// New returns the pool. It opens nothing.
func New(cfg Config, log *slog.Logger) *Pool {
	return &Pool{cfg: cfg, log: log, byUID: map[id.Sandbox]uint32{}, byFirst: map[uint32]id.Sandbox{}, last: -1}
}

// Open reads the ledger and makes it say what is in use: inUse has the first id of
// each user namespace that is there. It must return before anything is claimed. Safe
// to repeat. Of two sandboxes with one range one has none from then on, and both go on: the
// one without the note of it, or else the one that was made later.
func (p *Pool) Open(inUse map[id.Sandbox]uint32) error {
	notes, err := p.load()
	if err != nil {
		return err
	}
	for uid, first := range inUse {
		if !p.assignable(first) { // it stays: processes use it
			p.log.Warn("sandbox outside the pool of ids", uid.Attr(), logging.Reason(
				fmt.Sprintf("its ids begin at %d, which user_namespaces in node.yaml does not name any more; replace it", first)))
		}
	}
	want, shared := p.reconcile(notes, inUse)
	for uid, other := range shared {
		p.log.Warn("sandbox shares the ids of another; start it anew", uid.Attr(), logging.Reason(
			fmt.Sprintf("sandbox %s has those from %d as well, and keeps them", other, inUse[uid])))
	}
	return p.rewrite(notes, want)
}

// load opens the ledger, if it is not open, and returns its notes.
func (p *Pool) load() (map[id.Sandbox]uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledger == nil {
		j, _, err := journal.Open(journal.Options{Path: p.cfg.Ledger, Kind: ledgerKind, Version: ledgerVersion, Log: p.log})
		if err != nil {
			return nil, fmt.Errorf("open ledger of ids: %w", err)
		}
		p.ledger = j
	}
	notes := map[id.Sandbox]uint32{}
	err := p.ledger.View(func(tx journal.Tx) error {
		return tx.ForEach(bucket, func(key string, v []byte) error {
			uid, err := id.ParseSandbox(key)
			first, numberErr := strconv.ParseUint(string(v), 10, 32)
			if err := errors.Join(err, numberErr); err != nil { // one note holds up no node
				p.log.Warn("note in the ledger of ids skipped", logging.Component(key), logging.Err(err))
				return nil
			}
			notes[uid] = uint32(first)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read ledger of ids: %w", err)
	}
	return notes, nil
}

// reconcile decides what the ledger must say: what a namespace uses wins over a note,
// and a note stays while nothing is in use, so that a sandbox keeps its ids. Who uses what another has is
// in shared, with the other.
func (p *Pool) reconcile(notes, inUse map[id.Sandbox]uint32) (want map[id.Sandbox]uint32, shared map[id.Sandbox]id.Sandbox) {
	want, shared = map[id.Sandbox]uint32{}, map[id.Sandbox]id.Sandbox{}
	owner := map[uint32]id.Sandbox{}
	for uid, first := range inUse {
		if _, taken := owner[first]; !taken && notes[uid] == first {
			owner[first], want[uid] = uid, first
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(inUse)) { // uids are in the order in which they were made
		first := inUse[uid]
		switch other, taken := owner[first]; {
		case !taken:
			owner[first], want[uid] = uid, first
		case other != uid:
			shared[uid] = other
		}
	}
	for uid, first := range notes {
		_, known := want[uid]
		_, taken := owner[first]
		if !known && !taken && p.assignable(first) { // else it is claimed anew
			owner[first], want[uid] = uid, first
		}
	}
	return want, shared
}

// rewrite makes ledger and memory say what was found.
func (p *Pool) rewrite(notes, want map[id.Sandbox]uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byUID, p.byFirst = map[id.Sandbox]uint32{}, map[uint32]id.Sandbox{}
	changed := len(notes) != len(want)
	for uid, first := range want {
		p.byUID[uid], p.byFirst[first] = first, uid
		changed = changed || notes[uid] != first
	}
	if !changed {
		return nil // a full disk holds up nobody who has nothing to write
	}
	err := p.ledger.Update(func(tx journal.Tx) error {
		for uid := range notes {
			if err := tx.Delete(bucket, string(uid)); err != nil {
				return err
			}
		}
		for uid, first := range want {
			if err := tx.Put(bucket, string(uid), note(first)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("rewrite ledger of ids: %w", err)
	}
	return nil
}

func note(first uint32) []byte { return strconv.AppendUint(nil, uint64(first), 10) }

// Close closes the ledger. Safe to repeat, and before Open.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledger == nil {
		return nil
	}
	err := p.ledger.Close()
	p.ledger = nil
	return err
}

// While returns a context that ends with ctx, or when the ledger cannot be read any
// more. The caller calls stop.
func (p *Pool) While(ctx context.Context) (inside context.Context, stop context.CancelFunc) {
	p.mu.Lock()
	ledger := p.ledger
	p.mu.Unlock()
	if ledger == nil {
		return context.WithCancel(ctx)
	}
	return ledger.While(ctx)
}

// Claim returns the first id of a sandbox's range, and gives it a free range first if
// it has none; that is durable before Claim returns. Safe to repeat. It returns
// fault.Exhausted, reason NO_FREE_IDS, if no range is free.
func (p *Pool) Claim(uid id.Sandbox) (uint32, error) {
	p.mu.Lock()
	if first, ok := p.byUID[uid]; ok {
		p.mu.Unlock()
		return first, nil
	}
	ledger := p.ledger
	first, ok := p.next()
	switch {
	case ledger == nil:
		p.mu.Unlock()
		return 0, fault.New(fault.Unavailable, "claim ids of sandbox %s: the ledger is not open yet", uid)
	case !ok:
		p.mu.Unlock()
		return 0, fault.WithReason(fault.New(fault.Exhausted,
			"claim ids of sandbox %s: all %d ranges are in use, set user_namespaces.ranges in node.yaml to more", uid, p.cfg.Ranges), "NO_FREE_IDS")
	}
	p.byUID[uid], p.byFirst[first] = first, uid
	p.mu.Unlock()

	if err := ledger.Update(func(tx journal.Tx) error { return tx.Put(bucket, string(uid), note(first)) }); err != nil {
		p.forget(uid)
		return 0, fmt.Errorf("claim ids of sandbox %s: %w", uid, err)
	}
	return first, nil
}

// next finds a free range, behind the one given out last: a freed one comes up again
// as late as possible, so that nobody takes a new sandbox for an old one. mu is held.
func (p *Pool) next() (uint32, bool) {
	for i := range p.cfg.Ranges {
		number := (p.last + 1 + i) % p.cfg.Ranges
		first := p.cfg.First + uint32(number)*Size
		if _, used := p.byFirst[first]; !used {
			p.last = number
			return first, true
		}
	}
	return 0, false
}

// Free gives the range of a sandbox back. Its user namespace must be gone. Safe to
// repeat; a sandbox without one is success.
func (p *Pool) Free(uid id.Sandbox) error {
	p.mu.Lock()
	_, held := p.byUID[uid]
	ledger := p.ledger
	p.mu.Unlock()
	if !held {
		return nil
	}
	if ledger == nil {
		return fault.New(fault.Unavailable, "free ids of sandbox %s: the ledger is not open", uid)
	}
	// In the ledger first, so that it is never free here while noted there.
	if err := ledger.Update(func(tx journal.Tx) error { return tx.Delete(bucket, string(uid)) }); err != nil {
		return fmt.Errorf("free ids of sandbox %s: %w", uid, err)
	}
	p.forget(uid)
	return nil
}

func (p *Pool) forget(uid id.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byFirst, p.byUID[uid])
	delete(p.byUID, uid)
}

// First is the first id of a sandbox's range; false if it has none.
func (p *Pool) First(uid id.Sandbox) (uint32, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, ok := p.byUID[uid]
	return first, ok
}

// Sandboxes lists those that have a range, in no order.
func (p *Pool) Sandboxes() []id.Sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]id.Sandbox, 0, len(p.byUID))
	for uid := range p.byUID {
		all = append(all, uid)
	}
	return all
}

// assignable says whether a range is one of this node's pool.
func (p *Pool) assignable(first uint32) bool {
	return first >= p.cfg.First && first%Size == 0 && uint64(first) < uint64(p.cfg.First)+uint64(p.cfg.Ranges)*Size
}
