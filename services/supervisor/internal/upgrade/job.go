package upgrade

import (
	"context"
	"sync"
	"time"

	"staddle.internal/kit/fault"
)

// job is one upgrade on its way.
type job struct {
	from string

	mu      sync.Mutex // guards all below
	notes   []Note
	over    bool
	err     error
	changed chan struct{} // closed and replaced at each change
}

// follow tells what happens until the job is over.
func (u *Upgrader) follow(ctx context.Context, j *job, tell func(Note) error) error {
	for told := 0; ; {
		j.mu.Lock()
		notes, over, err, changed := j.notes[told:], j.over, j.err, j.changed
		j.mu.Unlock()
		for _, n := range notes {
			if err := tell(n); err != nil {
				return err
			}
		}
		told += len(notes)
		if over {
			return err
		}
		select {
		case <-changed:
		case <-u.done:
			return fault.New(fault.Unavailable, "upgrade: the supervisor is stopping")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (j *job) note(n Note) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n.At = time.Now()
	j.notes = append(j.notes, n)
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *job) end(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over, j.err = true, err
	close(j.changed)
	j.changed = make(chan struct{})
}
