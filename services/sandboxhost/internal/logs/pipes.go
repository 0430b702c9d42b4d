package logs

import (
	"context"
	"errors"
	"fmt"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// Pipes are the FIFOs of one container.
type Pipes struct {
	// Stdout and Stderr are the paths that the shim is given.
	Stdout, Stderr string

	streams [2]*stream
}

// Release says that the shim has opened the FIFOs, or never will: from now on
// their end is the end of the output.
func (p *Pipes) Release() error {
	return errors.Join(p.streams[0].releaseGuard(), p.streams[1].releaseGuard())
}

// Open makes fresh FIFOs for a container that is about to be made, and reads
// from them. Both read ends are with the Keeper when it returns. What an earlier
// try left is replaced; its bytes stay.
func (s *Store) Open(uid id.Sandbox, container string, attempt uint64, d Delivery) (*Pipes, error) {
	if err := errors.Join(s.comesAgain(uid), s.prune(uid, container, attempt)); err != nil {
		return nil, err
	}
	pair := s.pair(uid, container, attempt)
	for _, st := range pair {
		if err := st.open(d); err != nil {
			return nil, errors.Join(fmt.Errorf("open %s of container %s of sandbox %s: %w", st.key.name(), container, uid, err),
				pair[0].end(), pair[1].end())
		}
	}
	s.tell(func(w Watcher) { w.Opened(Attempt{uid, container, attempt}) })
	return &Pipes{Stdout: pair[0].fifo, Stderr: pair[1].fifo, streams: pair}, nil
}

// Started lets go of what Adopt held for a container that was made and not yet
// started: the shim has its ends open.
func (s *Store) Started(uid id.Sandbox, container string, attempt uint64) error {
	pair := s.pair(uid, container, attempt)
	return errors.Join(pair[0].releaseGuard(), pair[1].releaseGuard())
}

// Finish waits until all that a container wrote is in the files, for DrainLimit
// at most, and ends its streams. Safe to repeat.
func (s *Store) Finish(ctx context.Context, uid id.Sandbox, container string, attempt uint64) error {
	ctx, cancel := context.WithTimeout(ctx, DrainLimit)
	defer cancel()
	pair := s.pair(uid, container, attempt)
	var errs []error
	for _, st := range pair {
		errs = append(errs, st.releaseGuard())
	}
	for _, st := range pair {
		if !st.wait(ctx) {
			s.warn("output cut off", st.key, logging.Reason("something still holds the stream open"))
		}
		errs = append(errs, st.end())
	}
	return errors.Join(errs...)
}
