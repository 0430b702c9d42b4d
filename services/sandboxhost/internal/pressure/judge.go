// Package pressure says what the machine runs short of: memory, disk or process ids.
//
// What is measured is judged by pure functions: a shortage counts at once, and is over
// when all has been well, with some margin, for a time. It must never end what runs: the
// host takes no new sandboxes meanwhile, and images are removed before a disk counts as
// short. In the trail it stands before a sandbox is accepted, and beside the node's
// READY.
package pressure

import (
	"fmt"
	"time"

	"staddle.internal/services/sandboxhost/internal/filesystem"
)

// Resource is what may run short; its text is the type of the condition.
type Resource string

// The resources, in the order in which they are told.
const (
	Memory Resource = "MemoryPressure"
	Disk   Resource = "DiskPressure"
	PIDs   Resource = "PIDPressure"
)

// Resources are all of them.
var Resources = []Resource{Memory, Disk, PIDs}

// Limits say what is short. A zero value turns its measure off.
type Limits struct {
	// MemoryMinFree is what has to be available, in bytes.
	MemoryMinFree int64
	// MemoryStallPercent of ten seconds is how long everything may wait for memory.
	MemoryStallPercent int
	// DiskMinFree in bytes, and DiskMinFreePercent of bytes and inodes, have to be free.
	DiskMinFree        int64
	DiskMinFreePercent int
	// PIDMinFreePercent of process ids have to be free.
	PIDMinFreePercent int
	// Hold is for how long all has to be well before a shortage is over.
	Hold time.Duration
}

// MemoryUse is what the kernel says of memory.
type MemoryUse struct {
	// Available without swapping, counting the page cache that can be given back.
	Available, Total int64
	// Stall is the share of the last ten seconds in which everything waited for memory,
	// in percent; negative where the kernel does not say.
	Stall float64
	// Stalled is that the kernel has just told that they waited longer than may be.
	Stalled bool
}

// within is the use of a machine of which a limit leaves only so much; 0 for no limit.
func (m MemoryUse) within(available, limit int64) MemoryUse {
	if limit > 0 && limit < m.Total {
		m.Total = limit
		m.Available = min(m.Available, available)
	}
	return m
}

// PIDUse is how many tasks there are, of how many that there can be.
type PIDUse struct {
	// Of names who is limited, for people.
	Of        string
	Now, Most int64
}

// Verdict is what one measurement says of one resource.
type Verdict struct {
	// Short says with the figures what is short; "" if nothing is.
	Short string
	// Well is not short, by some margin.
	Well bool
	// Err says why it could not be measured; then the others mean nothing.
	Err error
}

// margin is the part of a limit that has to be free on top for a shortage to be over.
const margin = 10

// enough compares what is free with what has to be.
func enough(free, least int64) (short, well bool) { return free < least, free >= least+least/margin }

// JudgeMemory judges memory.
func JudgeMemory(m MemoryUse, l Limits) Verdict {
	short, well := enough(m.Available, l.MemoryMinFree)
	v := Verdict{Well: well || l.MemoryMinFree == 0}
	if short {
		v.Short = fmt.Sprintf("%s of %s memory available, %s have to be",
			filesystem.Bytes(m.Available), filesystem.Bytes(m.Total), filesystem.Bytes(l.MemoryMinFree))
	}
	most := float64(l.MemoryStallPercent)
	switch {
	case most == 0 || v.Short != "" || m.Stall < 0 && !m.Stalled:
	case m.Stalled:
		v.Short = fmt.Sprintf("all that runs waited for memory for more than %d %% of ten seconds; %s of %s available",
			l.MemoryStallPercent, filesystem.Bytes(m.Available), filesystem.Bytes(m.Total))
	case m.Stall > most:
		v.Short = fmt.Sprintf("all that runs waited for memory for %.0f %% of ten seconds, %d %% may be; %s of %s available",
			m.Stall, l.MemoryStallPercent, filesystem.Bytes(m.Available), filesystem.Bytes(m.Total))
	}
	if most > 0 && (m.Stalled || m.Stall > most-most/margin) {
		v.Well = false
	}
	return v
}

// JudgeDisks judges filesystems: one that is short is enough.
func JudgeDisks(disks []filesystem.Space, l Limits) Verdict {
	v := Verdict{Well: true}
	for _, d := range disks {
		least := max(l.DiskMinFree, d.Size/100*int64(l.DiskMinFreePercent))
		short, well := enough(d.Free, least)
		v.Well = v.Well && well
		if short && v.Short == "" {
			v.Short = fmt.Sprintf("%s; %s have to be free", d, filesystem.Bytes(least))
		}
		if d.Inodes == 0 {
			continue
		}
		leastInodes := d.Inodes / 100 * int64(l.DiskMinFreePercent)
		short, well = enough(d.InodesFree, leastInodes)
		v.Well = v.Well && well
		if short && v.Short == "" {
			v.Short = fmt.Sprintf("%s; %d inodes have to be free", d, leastInodes)
		}
	}
	return v
}

// JudgePIDs judges tasks: one limit that is nearly reached is enough.
func JudgePIDs(uses []PIDUse, l Limits) Verdict {
	v := Verdict{Well: true}
	for _, u := range uses {
		if u.Most <= 0 {
			continue
		}
		least := u.Most * int64(l.PIDMinFreePercent) / 100
		short, well := enough(u.Most-u.Now, least)
		v.Well = v.Well && well
		if short && v.Short == "" {
			v.Short = fmt.Sprintf("%d of %d process ids of %s in use, %d have to be free", u.Now, u.Most, u.Of, least)
		}
	}
	return v
}

// State of a condition.
type State int

// The states.
const (
	// Unknown is before the first measurement that succeeds.
	Unknown State = iota
	Well
	Short
)

// Track is one resource over time.
type Track struct {
	State State
	// Reason is why it is not Well.
	Reason string
	// Since is when the state was entered.
	Since time.Time
	// wellSince is since when a shortage could be over; zero while it could not.
	wellSince time.Time
}

// Next takes one verdict. A measurement that failed changes nothing that is known.
func (t Track) Next(now time.Time, v Verdict, hold time.Duration) Track {
	switch {
	case v.Err != nil && t.State == Unknown:
		return t.enter(Unknown, v.Err.Error(), now)
	case v.Err != nil:
		t.wellSince = time.Time{}
		return t
	case v.Short != "":
		t.wellSince = time.Time{}
		if t.State == Short { // its figures are told when it begins: each change is a report
			return t
		}
		return t.enter(Short, v.Short, now)
	case t.State != Short:
		return t.enter(Well, "", now)
	case !v.Well:
		t.wellSince = time.Time{}
		return t
	}
	if t.wellSince.IsZero() {
		t.wellSince = now
	}
	if now.Sub(t.wellSince) < hold {
		return t
	}
	return Track{}.enter(Well, "", now)
}

func (t Track) enter(s State, reason string, now time.Time) Track {
	if t.State != s || t.Since.IsZero() {
		t.Since = now
	}
	t.State, t.Reason = s, reason
	return t
}
