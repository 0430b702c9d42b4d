package drain

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/boottime"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Direct drains a node for a shutdown of the machine past a presence that does not
// answer: nothing is written down but the hold of sandboxhost.
type Direct struct {
	host   Host
	record *presencev1.DrainRecord
}

// NewDirect returns a drain of a host, in the boot of that id, in which what still
// lives after killAfter from now is killed.
func NewDirect(host Host, bootID string, killAfter time.Duration) *Direct {
	return &Direct{host: host, record: &presencev1.DrainRecord{
		Scope: presencev1.DrainScope_DRAIN_SCOPE_ALL, BootId: bootID, DeadlineBoottime: durationpb.New(boottime.Now() + killAfter),
	}}
}

// Drain places the hold and tells how far it is, at each change, until all is done; it
// returns nil then, and else why it cannot go on. The hold stays. Safe to repeat.
func (d *Direct) Drain(ctx context.Context, tell func(*presencev1.DrainProgress)) error {
	hold := holdOf(forShutdown, d.record)
	if err := d.host.Ensure(ctx, hold); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	seen := &sight{picture: newPicture(), told: make(chan struct{}, 1)}
	seen.picture.told = true
	seen.picture.confirm([]*sandboxhostv1.Hold{hold})
	ended := make(chan error, 2)
	wg.Go(func() { ended <- d.host.Sandboxes(ctx, noting(seen, (*picture).sandbox)) }) // waited for above, like the other
	wg.Go(func() { ended <- d.host.Grants(ctx, noting(seen, (*picture).grant)) })
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-seen.told:
		}
		now := seen.assess(d.record)
		tell(now)
		if now.GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
			return nil
		}
	}
}

// sight is a picture that two streams draw on.
type sight struct {
	told chan struct{} // something was drawn since it was looked at

	mu      sync.Mutex // guards picture
	picture picture
}

func (s *sight) assess(d *presencev1.DrainRecord) *presencev1.DrainProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return assess(forShutdown, d, &s.picture)
}

func noting[M any](s *sight, draw func(*picture, M)) func(M) {
	return func(msg M) {
		s.mu.Lock()
		draw(&s.picture, msg)
		s.mu.Unlock()
		select {
		case s.told <- struct{}{}:
		default: // it is looked at anyway
		}
	}
}
