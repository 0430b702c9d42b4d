package journal

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// maxGroup bounds how many changes share a transaction, so that its first waiter
// is not kept for long.
const maxGroup = 256

// request is one Update that waits.
type request struct {
	fn   func(Tx) error
	done chan outcome // of size 1: the writer never waits for it
}

// outcome is what became of a request. A panic of its function belongs to the
// caller and is thrown there.
type outcome struct {
	err      error
	panicked any
}

// write serves requests until the journal closes.
func (j *Journal) write() {
	defer close(j.written)
	for {
		select {
		case r := <-j.requests:
			j.commit(j.gather(r))
		case <-j.closing:
			return
		}
	}
}

// gather adds to first all that wait already.
func (j *Journal) gather(first *request) []*request {
	group := []*request{first}
	for len(group) < maxGroup {
		select {
		case r := <-j.requests:
			group = append(group, r)
		default:
			return group
		}
	}
	return group
}

// commit makes the changes of the group durable together. Whoever fails is
// answered alone, and the rest runs again without it.
func (j *Journal) commit(group []*request) {
	for len(group) > 0 {
		bad, out, err := j.try(group)
		if bad < 0 {
			for _, r := range group {
				r.done <- outcome{err: err}
			}
			return
		}
		group[bad].done <- out
		group = append(group[:bad:bad], group[bad+1:]...)
	}
}

// try runs the group in one transaction. It returns the index of the first
// function that failed and what it said, and then nothing was changed; or -1 and
// the result of the commit, which holds for all.
func (j *Journal) try(group []*request) (bad int, out outcome, err error) {
	bad = -1
	err = j.guarded(func() (err error) {
		tx, err := j.db.Begin(true)
		if err != nil {
			return err
		}
		defer func() {
			// After a commit there is nothing to undo and this says so.
			if e := tx.Rollback(); e != nil && !errors.Is(e, berrors.ErrTxClosed) {
				err = errors.Join(err, e)
			}
		}()
		for i, r := range group {
			if out = r.run(tx); out.err != nil || out.panicked != nil {
				bad = i
				return nil
			}
		}
		return tx.Commit()
	})
	if err != nil {
		err = fmt.Errorf("update journal %s: %w", j.path, classify(err))
	}
	return bad, out, err
}

// run calls the function of one request.
func (r *request) run(tx *bbolt.Tx) (out outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = outcome{panicked: p}
		}
	}()
	return outcome{err: guard(func() error { return Tx{tx, &state{}}.run(r.fn) })}
}
