package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// What the journal holds.
const (
	// JournalFile is the name of the journal in the folder of data, and JournalKind and
	// JournalVersion are for journal.Options.
	JournalFile    = "journal.db"
	JournalKind    = "sandboxhost"
	JournalVersion = 1

	bucketRecords = "sandboxes"
	bucketTombs   = "tombstones"
	bucketHolds   = "holds"
	bucketHost    = "host"
	keyStarts     = "starts"
)

// seqBits is how many changes of one status a start of the host has room for.
const seqBits = 20

// loaded is what a host finds in its journal.
type loaded struct {
	records map[id.Sandbox]*sandboxhostv1.SandboxRecord
	tombs   map[id.Sandbox]*sandboxhostv1.Tombstone
	holds   []*sandboxhostv1.Hold
	starts  uint64
}

func load(j notes) (loaded, error) {
	l := loaded{
		records: make(map[id.Sandbox]*sandboxhostv1.SandboxRecord),
		tombs:   make(map[id.Sandbox]*sandboxhostv1.Tombstone),
	}
	err := j.View(func(tx journal.Tx) error {
		if v := tx.Get(bucketHost, keyStarts); len(v) == 8 {
			l.starts = binary.BigEndian.Uint64(v)
		}
		return errors.Join(
			journal.ForEachProto(tx, bucketRecords, func(uid string, r *sandboxhostv1.SandboxRecord) error {
				l.records[id.Sandbox(uid)] = r
				return nil
			}),
			journal.ForEachProto(tx, bucketTombs, func(uid string, t *sandboxhostv1.Tombstone) error {
				l.tombs[id.Sandbox(uid)] = t
				return nil
			}),
			journal.ForEachProto(tx, bucketHolds, func(_ string, hold *sandboxhostv1.Hold) error {
				l.holds = append(l.holds, hold)
				return nil
			}))
	})
	return l, err
}

// number makes this start the next one. With each start the seq of every status
// jumps above all that was shown before, also what was never written. It follows the
// wall clock, or a journal that is fresh, or one of yesterday on a machine that was
// put back, would stay below what the lost one had, and every status be refused. On
// a full disk it is written with the next change that can be: what runs must be kept
// all the same.
func (h *Host) number(before uint64) error {
	starts := nextStart(before, time.Now())
	err := h.deps.Journal.Update(func(tx journal.Tx) error { return putStart(tx, starts) })
	if errors.Is(err, fault.Exhausted) {
		h.log().Warn("start not written", logging.Err(err))
		h.owed.Store(starts)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	h.seqBase = starts << seqBits
	return nil
}

func putStart(tx journal.Tx, starts uint64) error {
	return tx.Put(bucketHost, keyStarts, binary.BigEndian.AppendUint64(nil, starts))
}

// saveAdopted makes the records durable as they were adopted. On a full disk each
// is written with its next change: until then the next start finds the same again. It
// says whether they are written.
func (h *Host) saveAdopted(records map[id.Sandbox]*sandboxhostv1.SandboxRecord) (bool, error) {
	err := h.deps.Journal.Update(func(tx journal.Tx) error {
		for uid, r := range records {
			if err := journal.PutProto(tx, bucketRecords, string(uid), r); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, fault.Exhausted) {
		h.log().Warn("adopted sandboxes not written", logging.Err(err))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write journal: %w", err)
	}
	return true, nil
}

func nextStart(before uint64, wall time.Time) uint64 {
	return max(before+1, uint64(max(wall.UnixMilli(), 1)))
}

// saveRecord makes a record durable.
func (h *Host) saveRecord(uid id.Sandbox, r *sandboxhostv1.SandboxRecord) error {
	return h.write(uid, func(tx journal.Tx) error {
		return journal.PutProto(tx, bucketRecords, string(uid), r)
	})
}

// saveTomb puts a tombstone in the place of a record.
func (h *Host) saveTomb(uid id.Sandbox, t *sandboxhostv1.Tombstone) error {
	return h.write(uid, func(tx journal.Tx) error {
		if err := journal.PutProto(tx, bucketTombs, string(uid), t); err != nil {
			return err
		}
		return tx.Delete(bucketRecords, string(uid))
	})
}

// write makes a change durable. A caller that is told of a failure may repeat.
func (h *Host) write(uid id.Sandbox, fn func(tx journal.Tx) error) error {
	owed := h.owed.Load()
	err := h.deps.Journal.Update(func(tx journal.Tx) error {
		if err := fn(tx); err != nil || owed == 0 {
			return err
		}
		return putStart(tx, owed)
	})
	if err == nil && owed != 0 {
		h.owed.Store(0)
	}
	if err == nil || errors.Is(err, fault.Exhausted) {
		return err
	}
	return fault.New(fault.Unavailable, "write notes of sandbox %s: %w", uid, err)
}

// bury notes a tombstone for a uid of which the host holds nothing.
func (h *Host) bury(uid id.Sandbox, manager string) error {
	tomb := &sandboxhostv1.Tombstone{RemovedAt: timestamppb.Now(), Manager: manager}
	h.mu.Lock()
	if h.keepers[uid] != nil {
		h.mu.Unlock()
		return fault.New(fault.Unavailable, "sandbox %s: comes at the same time, ask again", uid)
	}
	old, already := h.tombs[uid]
	if already {
		tomb = old
	}
	h.tombs[uid] = tomb // before it is durable, so that no wish comes in between
	h.mu.Unlock()
	err := h.saveTomb(uid, tomb)
	if err != nil && !already {
		h.mu.Lock()
		delete(h.tombs, uid)
		h.mu.Unlock()
	}
	return err
}

// sweep forgets what nobody needs any more: old tombstones, and removed sandboxes
// of manager local that were not forgotten by hand.
func (h *Host) sweep(now time.Time) {
	for uid, s := range h.hub.Snapshot() {
		gone := s.GetStatus().GetTornDownAt()
		if s.GetManager() != ManagerLocal || gone == nil || now.Sub(gone.AsTime()) < localMemory {
			continue
		}
		if k, err := h.find(uid); err == nil && k != nil {
			k.tell(letter{forget: true, manager: ManagerLocal}) // a full mailbox: at the next sweep
		}
	}
	var old []id.Sandbox
	h.mu.Lock()
	for uid, t := range h.tombs {
		if now.Sub(t.GetRemovedAt().AsTime()) >= tombstoneLife {
			old = append(old, uid)
		}
	}
	h.mu.Unlock()
	for _, uid := range old {
		if err := h.write(uid, func(tx journal.Tx) error { return tx.Delete(bucketTombs, string(uid)) }); err != nil {
			h.log().Warn("tombstone kept", uid.Attr(), logging.Err(err))
			continue
		}
		h.mu.Lock()
		delete(h.tombs, uid)
		h.mu.Unlock()
	}
}
