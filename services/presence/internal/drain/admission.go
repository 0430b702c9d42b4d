package drain

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Short names for what holds are for.
const (
	forDrain    = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_DRAIN
	forShutdown = sandboxhostv1.HoldPurpose_HOLD_PURPOSE_SHUTDOWN
)

// moment is one point in time on both clocks of the node: Wall for people, Boot
// for reckoning.
type moment struct {
	Wall time.Time
	Boot time.Duration
}

// cordon returns what is kept after a cordon. The newest reason counts; none leaves the
// one that is there.
func cordon(r *presencev1.AdmissionRecord, reason string, at moment) *presencev1.AdmissionRecord {
	r = copyOf(r)
	if !r.GetCordoned() {
		r.Cordoned, r.CordonedAt = true, timestamppb.New(at.Wall)
	}
	if reason != "" {
		r.CordonReason = reason
	}
	return r
}

// join returns what is kept after another call of Drain: it joins the drain that is
// there, and the wider scope and the earlier deadline count. So the same call again
// changes nothing.
func join(r *presencev1.AdmissionRecord, req *presencev1.DrainRequest, boot string, at moment) *presencev1.AdmissionRecord {
	if req.GetShutdown() {
		r = copyOf(r)
		r.Shutdown = joined(r.GetShutdown(), req, boot, at)
		return r
	}
	r = cordon(r, req.GetReason(), at)
	r.Drain = joined(r.GetDrain(), req, boot, at)
	return r
}

func joined(d *presencev1.DrainRecord, req *presencev1.DrainRequest, boot string, at moment) *presencev1.DrainRecord {
	all := req.GetScope() != presencev1.DrainScope_DRAIN_SCOPE_CLUSTER
	if d == nil {
		d = &presencev1.DrainRecord{Scope: presencev1.DrainScope_DRAIN_SCOPE_CLUSTER, BeganAt: timestamppb.New(at.Wall)}
	}
	if all {
		d.Scope = presencev1.DrainScope_DRAIN_SCOPE_ALL
	}
	d.BootId = boot
	if req.GetKillAfter() == nil {
		return d
	}
	deadline := at.Boot + req.GetKillAfter().AsDuration()
	if d.GetDeadlineBoottime() == nil || deadline < d.GetDeadlineBoottime().AsDuration() {
		d.DeadlineBoottime = durationpb.New(deadline)
		d.DeadlineAt = timestamppb.New(at.Wall.Add(req.GetKillAfter().AsDuration()))
	}
	return d
}

// stayUp returns what is kept when a shutdown is not carried through.
func stayUp(r *presencev1.AdmissionRecord) *presencev1.AdmissionRecord {
	r = copyOf(r)
	r.Shutdown = nil
	return r
}

// reborn returns what is left of a record in a boot: a shutdown is over with the boot
// that it was asked for in, and so is a deadline.
func reborn(r *presencev1.AdmissionRecord, boot string) *presencev1.AdmissionRecord {
	if r == nil {
		return nil
	}
	r = copyOf(r)
	if r.GetShutdown().GetBootId() != boot {
		r.Shutdown = nil
	}
	if d := r.GetDrain(); d != nil && d.GetBootId() != boot {
		d.BootId, d.DeadlineBoottime, d.DeadlineAt = boot, nil, nil
	}
	return r
}

// found makes a record from the holds of a node whose notes are lost. Nil if there
// is nothing to go by: then nobody knows, and nothing is lifted.
func found(holds []*sandboxhostv1.Hold, boot string, at moment) *presencev1.AdmissionRecord {
	if len(holds) == 0 {
		return nil
	}
	r := &presencev1.AdmissionRecord{}
	for _, h := range holds {
		d := &presencev1.DrainRecord{
			Scope: scopeOf(h.GetScope()), BootId: boot, DeadlineBoottime: h.GetDeadlineBoottime(), BeganAt: h.GetHeldAt(),
		}
		if left := h.GetDeadlineBoottime(); left != nil {
			d.DeadlineAt = timestamppb.New(at.Wall.Add(left.AsDuration() - at.Boot))
		}
		switch h.GetPurpose() {
		case forDrain:
			r.Drain, r.Cordoned, r.CordonedAt = d, true, h.GetHeldAt()
		case forShutdown:
			r.Shutdown = d
		}
	}
	return r
}

// wanted lists the holds that a record asks for, by purpose.
func wanted(r *presencev1.AdmissionRecord) []*sandboxhostv1.Hold {
	var holds []*sandboxhostv1.Hold
	if d := r.GetDrain(); d != nil {
		holds = append(holds, holdOf(forDrain, d))
	}
	if d := r.GetShutdown(); d != nil {
		holds = append(holds, holdOf(forShutdown, d))
	}
	return holds
}

func holdOf(purpose sandboxhostv1.HoldPurpose, d *presencev1.DrainRecord) *sandboxhostv1.Hold {
	scope := sandboxhostv1.HoldScope_HOLD_SCOPE_ALL
	if d.GetScope() == presencev1.DrainScope_DRAIN_SCOPE_CLUSTER {
		scope = sandboxhostv1.HoldScope_HOLD_SCOPE_CLUSTER
	}
	return &sandboxhostv1.Hold{
		Purpose: purpose, Scope: scope, UntilReboot: purpose == forShutdown,
		DeadlineBoottime: d.GetDeadlineBoottime(), BootId: d.GetBootId(),
	}
}

func scopeOf(s sandboxhostv1.HoldScope) presencev1.DrainScope {
	if s == sandboxhostv1.HoldScope_HOLD_SCOPE_CLUSTER {
		return presencev1.DrainScope_DRAIN_SCOPE_CLUSTER
	}
	return presencev1.DrainScope_DRAIN_SCOPE_ALL
}

// difference says what to do so that the holds that stand are those that are wanted.
// One of a purpose that this release does not know is left alone.
func difference(want, have []*sandboxhostv1.Hold) (ensure []*sandboxhostv1.Hold, lift []sandboxhostv1.HoldPurpose) {
	for _, w := range want {
		if !stands(w, have) {
			ensure = append(ensure, w)
		}
	}
	for _, h := range have {
		known := h.GetPurpose() == forDrain || h.GetPurpose() == forShutdown
		if known && !slices.ContainsFunc(want, func(w *sandboxhostv1.Hold) bool { return w.GetPurpose() == h.GetPurpose() }) {
			lift = append(lift, h.GetPurpose())
		}
	}
	return ensure, lift
}

// stands says whether exactly that hold is among those that are there.
func stands(want *sandboxhostv1.Hold, have []*sandboxhostv1.Hold) bool {
	return slices.ContainsFunc(have, func(h *sandboxhostv1.Hold) bool {
		h = proto.CloneOf(h)
		h.HeldAt = nil
		return proto.Equal(h, want)
	})
}

// sameHolds says whether two lists are the same holds; both are ordered by purpose.
func sameHolds(a, b []*sandboxhostv1.Hold) bool {
	return slices.EqualFunc(a, b, func(x, y *sandboxhostv1.Hold) bool { return proto.Equal(x, y) })
}

func copyOf(r *presencev1.AdmissionRecord) *presencev1.AdmissionRecord {
	if r == nil {
		return &presencev1.AdmissionRecord{}
	}
	return proto.CloneOf(r)
}
