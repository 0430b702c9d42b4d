package mirror

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Buckets and keys of the journal.
const (
	bucketRecords = "records" // by uid
	bucketState   = "state"
	keyMirror     = "mirror"
)

// How changes are kept: a mirror that is a little behind is caught up by the
// watch, so many changes share one sync of the disk.
const (
	gather     = 200 * time.Millisecond
	retryAfter = 5 * time.Second
)

// keeper writes the mirror into the journal.
type keeper struct {
	mirror  *Mirror
	journal *journal.Journal
}

// load fills the mirror with what was kept. It is not live.
func (k *keeper) load() error {
	m := k.mirror
	return k.journal.View(func(tx journal.Tx) error {
		state, found, err := journal.GetProto[*clusteraccessv1.MirrorState](tx, bucketState, keyMirror)
		if err != nil || !found {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		err = journal.ForEachProto(tx, bucketRecords, func(uid string, r *resourcev1.Resource) error {
			m.records[uid] = r
			return nil
		})
		if err != nil {
			return err
		}
		state.Live, state.Reason, state.Since = false, notYet, timestamppb.Now()
		m.state = state
		for r := range m.readers {
			r.restartLocked()
		}
		return nil
	})
}

// run keeps changes until ctx ends, and then what is left.
func (k *keeper) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			k.flush()
			return context.Cause(ctx)
		case <-k.mirror.wake:
		}
		for !k.flush() {
			if backoff.Wait(ctx, retryAfter) != nil {
				break
			}
		}
		if backoff.Wait(ctx, gather) != nil {
			continue // the next turn ends it
		}
	}
}

// flush writes what changed: records and state as of one moment.
func (k *keeper) flush() bool {
	m := k.mirror
	m.mu.Lock()
	changed := make(map[string]*resourcev1.Resource, len(m.dirty))
	for uid := range m.dirty {
		changed[uid] = m.records[uid]
	}
	state, unkept := m.state, m.unkept
	m.dirty, m.unkept = make(map[string]struct{}), false
	m.mu.Unlock()
	if !unkept && len(changed) == 0 {
		return true
	}

	err := k.journal.Update(func(tx journal.Tx) error { return write(tx, changed, state) })
	if err == nil {
		return true
	}
	m.deps.Log.Warn("mirror not kept", logging.Err(err), logging.RetryIn(retryAfter))
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range changed {
		m.dirty[uid] = struct{}{}
	}
	m.unkept = true
	return false
}

func write(tx journal.Tx, changed map[string]*resourcev1.Resource, state *clusteraccessv1.MirrorState) error {
	for uid, r := range changed {
		var err error
		if r == nil {
			err = tx.Delete(bucketRecords, uid)
		} else {
			err = journal.PutProto(tx, bucketRecords, uid, r)
		}
		if err != nil {
			return err
		}
	}
	return journal.PutProto(tx, bucketState, keyMirror, state)
}

func (k *keeper) close(cause error) error {
	if err := k.journal.Close(); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}
