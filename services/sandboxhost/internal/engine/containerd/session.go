package containerd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	kitbackoff "staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
)

const (
	// questionLimit bounds one question to containerd.
	questionLimit = 10 * time.Second
	// firstLimit bounds the question whether it is there.
	firstLimit = 2 * time.Second
)

// again is the wait between attempts to reach containerd.
var again = kitbackoff.Policy{Initial: 20 * time.Millisecond, Cap: 500 * time.Millisecond, Stable: time.Second}

// dial makes the client. It connects with the first question, and looks again
// soon: grpc's own wait of a second would delay every adoption by as much.
func dial(cfg Config) (*containerd.Client, error) {
	return containerd.New(cfg.Address,
		containerd.WithDefaultNamespace(cfg.Namespace),
		containerd.WithExtraDialOpts([]grpc.DialOption{
			grpc.WithNoProxy(),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: firstLimit,
			}),
		}))
}

// Run connects to containerd and keeps in touch until ctx ends. It calls ready
// once, when the network is rebuilt and every survivor can be observed. That
// containerd cannot be reached is no failure: it says so through Deps.NotReady and
// goes on trying.
func (e *Engine) Run(ctx context.Context, ready func()) error {
	if e.clientErr != nil {
		return fmt.Errorf("connect to containerd at %s: %w", e.cfg.Address, e.clientErr)
	}
	var wg sync.WaitGroup
	adopted := make(chan struct{})
	var once sync.Once
	wg.Go(func() { e.hints.run(ctx) })      // ends with ctx; waited for below
	wg.Go(func() { e.tend(ctx, adopted) })  // the same
	wg.Go(func() { e.logs.Tend(ctx) })      // the same
	wg.Go(func() { e.learn(ctx, adopted) }) // the same
	err := e.keepInTouch(ctx, func() {
		once.Do(func() {
			close(adopted)
			ready()
		})
	})
	wg.Wait()
	return errors.Join(err, e.logs.Close(), e.network.Close(), e.ids.Close(), e.client.Close())
}

// keepInTouch runs one session after the other. Only what is wrong with this
// node itself ends it.
func (e *Engine) keepInTouch(ctx context.Context, ready func()) error {
	adopted := false
	attempt, since := 0, time.Now()
	delay := time.Duration(0)
	for kitbackoff.Wait(ctx, delay) == nil {
		began := time.Now()
		err := e.session(ctx, &adopted, func() {
			since = time.Time{}
			ready()
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end, which is no failure
		}
		if broken, ok := errors.AsType[*brokenError](err); ok {
			return broken.error
		}
		if since.IsZero() {
			since = time.Now()
		}
		reason := fmt.Sprintf("waiting for containerd: %v for %s", err, time.Since(since).Round(time.Second))
		e.setDisconnected(reason)
		attempt = again.Next(attempt, time.Since(began))
		if attempt == 1 {
			e.log.Warn("containerd out of reach", logging.Err(err))
		}
		delay = again.Delay(attempt, rand.Float64())
	}
	return nil
}

// brokenError ends the engine: waiting would not help.
type brokenError struct{ error }

func (b *brokenError) Unwrap() error { return b.error }

// session is one time in touch: first question, substrate, events, then the list,
// in this order, so that nothing that happens in between is missed.
func (e *Engine) session(ctx context.Context, adopted *bool, up func()) error {
	first, cancel := context.WithTimeout(ctx, firstLimit)
	_, err := e.client.Version(first)
	cancel()
	if err != nil {
		return errors.New(brief(err))
	}
	if !*adopted {
		if err := e.prepare(ctx); err != nil {
			return &brokenError{err}
		}
	}
	told := ctx // what follows ends also with the ledgers of addresses and ids
	ctx, end := e.network.While(ctx)
	defer end()
	ctx, endIDs := e.ids.While(ctx)
	defer endIDs()
	events, err := e.subscribe(ctx)
	if err != nil {
		return err
	}
	if err := e.load(ctx); err != nil {
		return err
	}
	if !*adopted {
		if err := e.users.clean(ctx); err != nil {
			return err
		}
		if err := e.logs.Adopt(ctx, e.unstarted(ctx)); err != nil {
			return &brokenError{err}
		}
		*adopted = true
	}
	e.setConnected()
	up()
	e.hints.all()
	err = e.follow(ctx, events)
	if told.Err() == nil && ctx.Err() != nil {
		return &brokenError{context.Cause(ctx)}
	}
	return err
}

// load lists our containers, so that a question about one sandbox needs no
// search.
func (e *Engine) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, questionLimit)
	defer cancel()
	list, err := e.client.ContainerService().List(ctx, `labels."`+labelSandbox+`"`)
	if err != nil {
		return fmt.Errorf("list containers: %s", brief(err))
	}
	found := map[string]*container{}
	for _, record := range list {
		if c, ok := e.read(record); ok {
			found[c.id] = c
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, c := range found {
		if old, ok := e.containers[key]; ok {
			c.startedAt, c.lostAt, c.exit, c.kills = old.startedAt, old.lostAt, old.exit, old.kills
		}
		e.containers[key] = c // one that is not listed stays: observing it finds out
	}
	return nil
}

// read makes sense of a container's record, and says whether it is one of ours.
func (e *Engine) read(record containers.Container) (*container, bool) {
	uid, err := id.ParseSandbox(record.Labels[labelSandbox])
	if err != nil {
		e.log.Warn("container with a strange label ignored", logging.Component(record.ID), logging.Err(err))
		return nil, false
	}
	note, err := readNote(record)
	if err != nil {
		e.log.Warn("container note unreadable", uid.Attr(), logging.Component(record.ID), logging.Err(err))
	}
	return &container{
		id: record.ID, uid: uid, note: note, group: record.Labels[labelGroup], snapshot: record.SnapshotKey,
		limits: readLimits(record, engine.Container{Note: note}.Made()),
	}, true
}

// unstarted says of which containers the shim may not have opened its pipes yet.
// A container of which that cannot be told counts as one.
func (e *Engine) unstarted(ctx context.Context) func(id.Sandbox, string, uint64) bool {
	silent := map[id.Sandbox]bool{} // one shim that does not answer is asked once
	look := func(c *container) (seen *engine.Container, err error) {
		ctx, cancel := context.WithTimeout(ctx, questionLimit)
		defer cancel()
		if !silent[c.uid] {
			seen, err = e.observeContainer(ctx, e.client, c)
			silent[c.uid] = isSilent(err)
		}
		if silent[c.uid] {
			return e.observeSilent(ctx, e.client, c)
		}
		return seen, err
	}
	return func(uid id.Sandbox, name string, attempt uint64) bool {
		for _, c := range e.of(uid) {
			if c.note == nil || c.note.GetContainer() != name || c.note.GetAttempt() != attempt {
				continue
			}
			seen, err := look(c)
			return err != nil || seen == nil || seen.StartedAt.IsZero() && seen.Exit == nil
		}
		return false
	}
}

func (e *Engine) setConnected() {
	e.mu.Lock()
	e.connected, e.reason = true, ""
	e.mu.Unlock()
	e.deps.NotReady("")
}

func (e *Engine) setDisconnected(reason string) {
	e.mu.Lock()
	e.connected, e.reason = false, reason
	e.mu.Unlock()
	e.deps.NotReady(reason)
	e.hints.all()
}

// unavailable is the error of a question that was not answered.
func unavailable(doing string, err error) error {
	return fault.New(fault.Unavailable, "%s: %s", doing, brief(err))
}
