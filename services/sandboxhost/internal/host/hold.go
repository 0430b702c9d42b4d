package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Short names for what holds are for.
const (
	forDrain    = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_DRAIN
	forShutdown = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_SHUTDOWN

	scopeAll     = sandboxhostv1.HoldScope_HOLD_SCOPE_ALL
	scopeCluster = sandboxhostv1.HoldScope_HOLD_SCOPE_CLUSTER
)

// holds are all that stand, at most one of each purpose, and how often they changed.
type holds struct {
	version uint64
	all     []*sandboxhostv1.Hold // by purpose
}

// held is what the holds together mean for one sandbox.
type held struct {
	by       sandboxhostv1.HoldPurpose
	limited  bool
	deadline time.Duration // the first, as time since boot, if limited
}

// over says whether grace periods count no more.
func (h held) over(now time.Duration) bool { return h.limited && h.deadline <= now }

// sentence tells people why.
func (h held) sentence() string {
	switch h.by {
	case forDrain:
		return "the node is drained; it starts again after: staddle node uncordon"
	case forShutdown:
		return "the machine is being shut down; it starts again after the reboot"
	}
	return sentences[ReasonHeld]
}

// meaning joins the holds that apply to a sandbox of a manager; it is pure.
func (h *holds) meaning(manager string) (m held, applies bool) {
	for _, one := range h.all {
		if one.GetScope() == scopeCluster && manager != ManagerCluster {
			continue
		}
		if !applies {
			m.by, applies = one.GetPurpose(), true
		}
		if d := one.GetDeadlineBoottime(); d != nil && (!m.limited || d.AsDuration() < m.deadline) {
			m.limited, m.deadline = true, d.AsDuration()
		}
	}
	return m, applies
}

// with returns the holds with one in the place of that of the same purpose; a nil one
// takes it away. It is pure.
func (h *holds) with(purpose sandboxhostv1.HoldPurpose, one *sandboxhostv1.Hold) *holds {
	all := slices.DeleteFunc(slices.Clone(h.all), func(o *sandboxhostv1.Hold) bool { return o.GetPurpose() == purpose })
	if one != nil {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *sandboxhostv1.Hold) int { return int(a.GetPurpose() - b.GetPurpose()) })
	return &holds{version: h.version + 1, all: all}
}

func (h *holds) of(purpose sandboxhostv1.HoldPurpose) *sandboxhostv1.Hold {
	for _, one := range h.all {
		if one.GetPurpose() == purpose {
			return one
		}
	}
	return nil
}

// outlives is what is left of a hold in a boot; nil when it ended with another one.
// A deadline means nothing in a boot in which nothing of before lives. It is pure.
func outlives(one *sandboxhostv1.Hold, boot string) *sandboxhostv1.Hold {
	if one.GetBootId() == boot {
		return one
	}
	if one.GetUntilReboot() {
		return nil
	}
	one = proto.CloneOf(one)
	one.BootId, one.DeadlineBoottime = boot, nil
	return one
}

// heldBy says what the holds mean for sandboxes of a manager.
func (h *Host) heldBy(manager string) (held, bool) { return h.holds.Load().meaning(manager) }

// Holds returns the holds that stand. All rules of HoldService.ListHolds hold.
func (h *Host) Holds() ([]*sandboxhostv1.Hold, error) {
	if _, err := h.find(""); err != nil {
		return nil, err
	}
	return h.holds.Load().all, nil
}

// FollowHolds calls tell with the holds that stand, now and after each change, until ctx
// ends or tell fails. All rules of HoldService.WatchHolds hold.
func (h *Host) FollowHolds(ctx context.Context, tell func([]*sandboxhostv1.Hold) error) error {
	if _, err := h.find(""); err != nil { // not before adoption: what is unknown would look like "none"
		return err
	}
	for ev := range h.told.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fault.New(fault.Unavailable, "the reader is too far behind, watch again")
}

// setHolds makes holds count, and tells of them.
func (h *Host) setHolds(all *holds) {
	h.holds.Store(all)
	h.told.Set(struct{}{}, all.all)
}

// EnsureHold keeps sandboxes stopped. All rules of HoldService.EnsureHold hold.
func (h *Host) EnsureHold(want *sandboxhostv1.Hold) (*sandboxhostv1.Hold, error) {
	if _, err := h.find(""); err != nil {
		return nil, err
	}
	want = proto.CloneOf(want)
	if boot := want.GetBootId(); boot != "" && boot != h.cfg.BootID {
		return nil, conflict("OTHER_BOOT", "hold for %s: was made for boot %s, and this is %s", purposeName(want.GetPurpose()), boot, h.cfg.BootID)
	}
	want.BootId = h.cfg.BootID
	if want.GetScope() != scopeCluster {
		want.Scope = scopeAll
	}
	h.holdings.Lock()
	defer h.holdings.Unlock()
	was := h.holds.Load().of(want.GetPurpose())
	want.HeldAt = timestamppb.New(h.now().Wall)
	if was != nil {
		want.HeldAt = was.GetHeldAt()
	}
	if proto.Equal(was, want) {
		return was, nil
	}
	if err := h.changeHolds(want.GetPurpose(), want); err != nil {
		return nil, err
	}
	h.log().Info("hold placed", logging.Reason(purposeName(want.GetPurpose())))
	return want, nil
}

// LiftHold lets sandboxes go on. All rules of HoldService.LiftHold hold.
func (h *Host) LiftHold(purpose sandboxhostv1.HoldPurpose) error {
	if _, err := h.find(""); err != nil {
		return err
	}
	h.holdings.Lock()
	defer h.holdings.Unlock()
	if h.holds.Load().of(purpose) == nil {
		return nil
	}
	if err := h.changeHolds(purpose, nil); err != nil {
		return err
	}
	h.log().Info("hold lifted", logging.Reason(purposeName(purpose)))
	return nil
}

// changeHolds writes a hold down, or that there is none, and then lets every keeper
// hear of it. holdings is held.
func (h *Host) changeHolds(purpose sandboxhostv1.HoldPurpose, one *sandboxhostv1.Hold) error {
	if err := h.saveHold(purpose, one); err != nil {
		return err
	}
	h.setHolds(h.holds.Load().with(purpose, one))
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.keepers {
		k.hintHeld()
	}
	return nil
}

// saveHold makes a hold durable, or its end.
func (h *Host) saveHold(purpose sandboxhostv1.HoldPurpose, one *sandboxhostv1.Hold) error {
	err := h.deps.Journal.Update(func(tx journal.Tx) error {
		if one == nil {
			return tx.Delete(bucketHolds, purposeName(purpose))
		}
		return journal.PutProto(tx, bucketHolds, purposeName(purpose), one)
	})
	if err == nil || errors.Is(err, fault.Exhausted) {
		return err
	}
	return fault.New(fault.Unavailable, "write hold for %s: %w", purposeName(purpose), err)
}

// adoptHolds takes over the holds of the life before, without those that ended with
// another boot. On a full disk each start finds the same again.
func (h *Host) adoptHolds(noted []*sandboxhostv1.Hold) error {
	all := h.holds.Load()
	for _, was := range noted {
		is := outlives(was, h.cfg.BootID)
		if is != was {
			if err := h.saveHold(was.GetPurpose(), is); err != nil && !errors.Is(err, fault.Exhausted) {
				return fmt.Errorf("write journal: %w", err)
			}
		}
		if is != nil {
			all = all.with(is.GetPurpose(), is)
		}
	}
	h.setHolds(all)
	return nil
}

// purposeName is the word for a purpose in messages and notes.
func purposeName(p sandboxhostv1.HoldPurpose) string {
	switch p {
	case forDrain:
		return "drain"
	case forShutdown:
		return "shutdown"
	}
	return fmt.Sprintf("purpose %d", p)
}

// hear takes note of holds that have changed. Whatever failed before is tried at once:
// the reason may be gone with what was being made.
func (k *keeper) hear() {
	version := k.host.holds.Load().version
	if version == k.heard {
		return
	}
	k.heard = version
	k.retry = retryNotes{}
	k.reshow()
}
