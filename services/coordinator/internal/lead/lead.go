// Package lead owns which of several coordinators acts: all serve, one places
// and finishes.
//
// The leader holds a key of etcd under a lease. Who loses the lease stops acting
// and asks again; what it was about to write is a compare-and-set and harms
// nobody. A coordinator with the etcd inside is alone and leads at once. It must
// never hold up the API: who does not lead is ready as well.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
)

// ttlSeconds is after how long a dead leader is followed by another.
const ttlSeconds = 10

// Config says how to lead.
type Config struct {
	// Alone means that there is no other coordinator.
	Alone bool
	// Key is the folder of the election.
	Key string
	// Name of this coordinator among the others.
	Name string
}

// Deps is what leading needs.
type Deps struct {
	Log *slog.Logger
	// Etcd is asked for once it runs.
	Etcd func() *clientv3.Client
	// Work are the members that only the leader runs.
	Work []run.Member
}

// Leader runs work while this coordinator leads.
type Leader struct {
	cfg  Config
	deps Deps
}

// New returns a leader that does not stand yet.
func New(cfg Config, deps Deps) *Leader { return &Leader{cfg, deps} }

var retry = backoff.Policy{Initial: 200 * time.Millisecond, Cap: 5 * time.Second}

// Run stands for election until ctx ends, and works while elected.
func (l *Leader) Run(ctx context.Context, ready func()) error {
	ready()
	if l.cfg.Alone {
		return run.Members(ctx, l.deps.Work...)
	}
	for attempt := 1; ctx.Err() == nil; attempt++ {
		err := l.term(ctx)
		if ctx.Err() != nil {
			break
		}
		l.deps.Log.Warn("leadership lost", logging.Err(err))
		if backoff.Wait(ctx, retry.Delay(attempt, 0.5)) != nil {
			break
		}
	}
	return context.Cause(ctx)
}

// errLost ends the work of a leader whose lease is gone.
var errLost = errors.New("the lease of the leader ended")

// term waits until elected and works until that ends.
func (l *Leader) term(ctx context.Context) error {
	session, err := l.session(ctx)
	if err != nil {
		return fmt.Errorf("get lease of leader: %w", err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			l.deps.Log.Warn("lease kept", logging.Err(err)) // it ends by itself
		}
	}()
	if err := concurrency.NewElection(session, l.cfg.Key).Campaign(ctx, l.cfg.Name); err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	l.deps.Log.Info("leader elected", logging.To(l.cfg.Name))
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched := make(chan struct{})
	go func() { // owned by term: ends with the session or with work
		defer close(watched)
		select {
		case <-session.Done():
			stop(errLost)
		case <-work.Done():
		}
	}()
	err = run.Members(work, l.deps.Work...)
	stop(err)
	<-watched
	return err
}

// session gets a lease and keeps it. Closing it gives the lease back also when ctx
// has ended: else the next leader would wait for it to run out.
func (l *Leader) session(ctx context.Context) (*concurrency.Session, error) {
	lease, err := l.deps.Etcd().Grant(ctx, ttlSeconds)
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(l.deps.Etcd(), concurrency.WithLease(lease.ID),
		concurrency.WithTTL(ttlSeconds), concurrency.WithContext(context.WithoutCancel(ctx)))
}
