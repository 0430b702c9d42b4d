package containerd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// The topic of our own event, by which we know that a subscription counts.
const proofTopic = "/staddle/proof"

// Bounds of proving a subscription.
const (
	proofEvery = 20 * time.Millisecond
	proofLimit = 5 * time.Second
)

// countedAfter is when a kill for memory is looked for once more. The first version of
// control groups tells of it before the kernel has chosen whom to end (mem_cgroup_oom_notify),
// and on a busy machine a look in between sees no kill; nothing else would tell of it.
const countedAfter = time.Second

// subscription is a stream of events that is known to be complete from now on.
type subscription struct {
	events <-chan *events.Envelope
	errs   <-chan error
}

// subscribe opens the stream of events and returns once it is proven to deliver:
// containerd says nothing when it begins, so we send events of our own until one
// comes back.
func (e *Engine) subscribe(ctx context.Context) (subscription, error) {
	filter := func(topic string) string { return fmt.Sprintf("namespace==%q,topic==%q", e.cfg.Namespace, topic) }
	var s subscription
	s.events, s.errs = e.client.EventService().Subscribe(ctx,
		filter("/tasks/exit"), filter("/tasks/oom"), filter("/tasks/delete"), filter(proofTopic))
	limit := time.NewTimer(proofLimit)
	defer limit.Stop()
	tick := time.NewTicker(proofEvery)
	defer tick.Stop()
	for {
		if err := e.client.EventService().Publish(ctx, proofTopic, &emptypb.Empty{}); err != nil {
			return s, fmt.Errorf("subscribe to events: %s", brief(err))
		}
		select {
		case env := <-s.events:
			if env != nil {
				return s, nil // the list that follows sees what this one was about
			}
		case err := <-s.errs:
			return s, fmt.Errorf("subscribe to events: %s", brief(err))
		case <-tick.C:
		case <-limit.C:
			return s, fmt.Errorf("subscribe to events: nothing came back within %s", proofLimit)
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}

// follow turns events into hints until the stream ends.
func (e *Engine) follow(ctx context.Context, s subscription) error {
	for {
		select {
		case env := <-s.events:
			if env != nil {
				e.hint(env)
			}
		case err := <-s.errs:
			if err == nil {
				err = errors.New("the stream of events ended")
			}
			return errors.New(brief(err))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hint says which sandbox an event is about. One that cannot be read is about
// all.
func (e *Engine) hint(env *events.Envelope) {
	if env.Topic == proofTopic {
		return
	}
	event, err := typeurl.UnmarshalAny(env.Event)
	if err != nil {
		e.log.Warn("event unreadable", logging.Err(err))
		e.hints.all()
		return
	}
	named, ok := event.(interface{ GetContainerID() string })
	if !ok {
		return
	}
	if exit, ok := event.(*apievents.TaskExit); ok && exit.GetID() != exit.GetContainerID() {
		return // a process that was executed beside the main one
	}
	uid, ok := sandboxOf(named.GetContainerID())
	if !ok {
		return
	}
	e.hints.one(uid)
	if _, ok := event.(*apievents.TaskOOM); ok {
		time.AfterFunc(countedAfter, func() { e.hints.one(uid) })
	}
}

// sandboxOf reads the uid at the beginning of a container's id.
func sandboxOf(containerID string) (id.Sandbox, bool) { return engine.SandboxOf(containerID) }

// hints is the queue of sandboxes to look at again: each is in it once at most,
// and nobody who adds to it waits.
type hints struct {
	out  chan id.Sandbox
	bell chan struct{} // holds one when something was added

	mu      sync.Mutex
	pending map[id.Sandbox]bool // "" means all
}

func newHints() *hints {
	return &hints{out: make(chan id.Sandbox), bell: make(chan struct{}, 1), pending: map[id.Sandbox]bool{}}
}

func (h *hints) all() { h.one("") }

func (h *hints) one(uid id.Sandbox) {
	h.mu.Lock()
	h.pending[uid] = true
	h.mu.Unlock()
	select {
	case h.bell <- struct{}{}:
	default:
	}
}

func (h *hints) take() []id.Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]id.Sandbox, 0, len(h.pending))
	for uid := range h.pending {
		list = append(list, uid)
	}
	clear(h.pending)
	return list
}

// run delivers what is added until ctx ends.
func (h *hints) run(ctx context.Context) {
	for {
		select {
		case <-h.bell:
		case <-ctx.Done():
			return
		}
		for _, uid := range h.take() {
			select {
			case h.out <- uid:
			case <-ctx.Done():
				return
			}
		}
	}
}
