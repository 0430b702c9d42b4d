// Package collect owns what the coordinator itself finishes: sessions that went
// away without a word, records whose owner or node is gone, disks that were given
// back.
//
// Plan is the whole decision, as one pure function over the mirror at one moment;
// the loop writes each step as a compare-and-set, so that acting on an old copy
// changes nothing. It must never take a disk from a holder by a time-out: only
// the node's word, or an operator who removed the node, frees one. In the trail
// it stands at the end of a record's life.
package collect

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/mirror"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/session"
	"staddle.internal/services/coordinator/internal/store"
)

// Step is one thing to finish.
type Step struct {
	// What names it in logs, as "node lost".
	What string
	// Record is what it is about.
	Record *record.Resource
	// Change does it.
	Change store.Change
}

// scene is the view with what several rules ask for.
type scene struct {
	mirror.View
	at   *timestamppb.Timestamp
	uids map[string]*record.Resource
}

// Plan lists what is to be finished at one moment, in a stable order. A step may
// make further ones possible: those come with the next plan.
func Plan(view mirror.View, at *timestamppb.Timestamp) []Step {
	s := scene{view, at, map[string]*record.Resource{}}
	for _, table := range view.Records {
		for _, r := range table {
			s.uids[r.GetMeta().GetUid()] = r
		}
	}
	var steps []Step
	for _, kind := range record.Kinds() {
		for _, r := range view.Records[kind] {
			if step, ok := s.finish(kind, r); ok {
				step.Record = r
				steps = append(steps, step)
			}
		}
	}
	slices.SortFunc(steps, func(a, b Step) int { return cmp.Compare(a.Record.GetMeta().GetUid(), b.Record.GetMeta().GetUid()) })
	return steps
}

func (s scene) finish(kind record.Kind, r *record.Resource) (Step, bool) {
	switch kind {
	case record.Node:
		return s.node(r)
	case record.Sandbox:
		return s.sandbox(r)
	case record.Disk:
		return s.disk(r)
	case record.DiskLease:
		return s.lease(r)
	}
	return Step{}, false
}

// node notices that the session which the record names is not there any more.
func (s scene) node(r *record.Resource) (Step, bool) {
	p := r.GetNode().GetPlacement()
	if p.GetSessionId() == 0 || s.Sessions[r.GetMeta().GetName()].ID == p.GetSessionId() {
		return Step{}, false
	}
	next := record.Clone(r)
	next.GetNode().Placement = session.Lost(p, s.at)
	return Step{What: "node lost", Change: store.Change{Replace: []*record.Resource{next}}}, true
}

// sandbox ends with its node's word, or with its node.
func (s scene) sandbox(r *record.Resource) (Step, bool) {
	p := r.GetSandbox().GetPlacement()
	orphan := p.GetNode() != "" && s.uids[p.GetNodeUid()] == nil
	switch {
	case !record.Deleting(r) && orphan:
		return s.mark(r, "sandbox orphaned"), true
	case record.Deleting(r) && (p.GetNode() == "" || orphan || record.TornDown(r) != nil):
		return remove(r, "sandbox removed"), true
	}
	return Step{}, false
}

// disk ends with its node's word. One of a removed node goes only if that was
// asked for: the data may still be wanted.
func (s scene) disk(r *record.Resource) (Step, bool) {
	if !record.Deleting(r) || r.GetDisk().GetPlacement().GetHolder() != "" {
		return Step{}, false
	}
	home := record.Home(r)
	if home == "" || record.TornDown(r) != nil || s.Records[record.Node][home] == nil {
		return remove(r, "disk removed"), true
	}
	return Step{}, false
}

// lease is taken back when its sandbox is gone, and ends with the node's word
// that the disk was given back. Its disk gets free in the same write.
func (s scene) lease(r *record.Resource) (Step, bool) {
	spec := r.GetDiskLease().GetSpec()
	holder := s.uids[spec.GetSandboxUid()]
	released := r.GetDiskLease().GetStatus().GetPhase() == resourcev1.DiskLeasePhase_DISK_LEASE_PHASE_RELEASED
	leaving := holder == nil || record.Deleting(holder)
	removed := s.Records[record.Node][spec.GetNode()] == nil
	switch {
	case leaving && released, holder == nil && removed:
		return s.free(r), true
	case holder == nil && !record.Deleting(r):
		return s.mark(r, "disk lease revoked"), true
	}
	return Step{}, false
}

func (s scene) free(lease *record.Resource) Step {
	step := remove(lease, "disk released")
	disk := s.uids[lease.GetDiskLease().GetSpec().GetDiskUid()]
	if disk.GetDisk().GetPlacement().GetLeaseUid() == lease.GetMeta().GetUid() {
		next := record.Clone(disk)
		next.GetDisk().Placement.Holder, next.GetDisk().Placement.LeaseUid = "", ""
		step.Change.Replace = []*record.Resource{next}
	}
	return step
}

func (s scene) mark(r *record.Resource, what string) Step {
	next := record.Clone(r)
	next.Meta.DeletingAt = s.at
	return Step{What: what, Change: store.Change{Replace: []*record.Resource{next}}}
}

func remove(r *record.Resource, what string) Step {
	return Step{What: what, Change: store.Change{Remove: []*record.Resource{r}}}
}

// Overdue lists the nodes that have been lost for longer than grace, and says
// after how long the next one will have been; at most an hour.
func Overdue(view mirror.View, grace time.Duration, now time.Time) (nodes []*record.Resource, next time.Duration) {
	next = time.Hour
	for _, r := range view.Records[record.Node] {
		since := r.GetNode().GetPlacement().GetLostSince()
		if since == nil {
			continue
		}
		if left := grace - now.Sub(since.AsTime()); left > 0 {
			next = min(next, left)
			continue
		}
		nodes = append(nodes, r)
	}
	return nodes, next
}
