// Package node owns what is told of this node: its session, its conditions and its
// status.
//
// One goroutine owns the state. Watchers of the capabilities, the session's
// renewals and the mirror send it what they learn; after each, and when a
// hold-down ends, it says anew how the node is, and reports that if the node's
// record does not show it. It must never call the node ready before every
// required capability serves and the session is open. In the trail it is what the
// scheduler looks at before it places anything here.
package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"staddle.internal/kit/journal"
	"staddle.internal/kit/leash"
	"staddle.internal/kit/watch"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/presence/internal/condition"
)

// Config says which node it is.
type Config struct {
	// Name of the node.
	Name string
	// Journal is the path of the notes. Its folder must exist.
	Journal string
	// TTL is how long the session lasts without renewal.
	TTL time.Duration
	// HoldDown is how long a crashed capability may be away.
	HoldDown time.Duration
	// Version and BootID are told as they are.
	Version, BootID string
	// Bridge is the device whose addresses are not the node's own.
	Bridge string
	// Gateway says where the node's gateway is reached, of the node's own addresses.
	// Nil means that there is none.
	Gateway func(own []string) string
}

// Session is an open session.
type Session struct {
	// ID of the session, never 0.
	ID int64
	// TTL is how long it lasts.
	TTL time.Duration
	// NodeUID is the uid of the node's record.
	NodeUID string
}

// Cluster is what presence needs of clusteraccess. Its errors carry kinds.
type Cluster interface {
	// Renew keeps the session with that id open, or opens one.
	Renew(ctx context.Context, id int64, ttl time.Duration) (Session, error)
	// End ends the session; the workloads go on.
	End(ctx context.Context, id int64) error
	// Report hands over the status of the node's record.
	Report(ctx context.Context, record *resourcev1.Resource) error
	// Watch tells every message of the stream of node records until it ends, and
	// returns why, never nil.
	Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error
}

// Capability tells how a neighbour is.
type Capability interface {
	// Follow tells every observation until ctx ends.
	Follow(ctx context.Context, tell func(condition.Observation))
}

// Admission tells whether the node takes work; a *drain.Keeper.
type Admission interface {
	// Follow tells how it is now and after each change, until ctx ends or tell fails.
	Follow(ctx context.Context, tell func(*presencev1.Admission) error) error
	// Told is called with whether the node's record shows that it is cordoned.
	Told(cordoned bool)
}

// Pressure tells what the machine runs short of.
type Pressure interface {
	// Follow tells the conditions now and after each change, until ctx ends; and nil for
	// as long as they cannot be heard.
	Follow(ctx context.Context, tell func([]*resourcev1.Condition))
}

// Required is one capability that the node needs to be ready.
type Required struct {
	// Type of its condition.
	Type string
	// Capability that is followed.
	Capability Capability
}

// Deps is what a node needs.
type Deps struct {
	// Cluster is clusteraccess.
	Cluster Cluster
	// Link is clusteraccess' link to the coordinator.
	Link Capability
	// Required are the capabilities, in the order in which they are told.
	Required []Required
	// Admission is whether the node was cordoned or drained.
	Admission Admission
	// Pressure is what the machine runs short of. Nil where nobody measures.
	Pressure Pressure
	// Log gets each change of READY and of the session.
	Log *slog.Logger
}

// typeLink is the type of the condition of link and session.
const typeLink = "Link"

// tick is the longest time without a look at what nobody tells, such as the
// node's addresses.
const tick = 30 * time.Second

// Node is the node as it is told.
type Node struct {
	cfg    Config
	deps   Deps
	log    *slog.Logger
	events chan func(*state)
	renew  chan struct{} // a renewal is worth a try now
	away   atomic.Bool   // the machine goes down and nothing runs any more: no session
	hub    *watch.Hub[struct{}, *presencev1.Presence]
}

// New returns a node of which nothing is told until Run.
func New(cfg Config, deps Deps) *Node {
	n := &Node{
		cfg: cfg, deps: deps, log: deps.Log,
		events: make(chan func(*state), 64), renew: make(chan struct{}, 1),
		hub: watch.New[struct{}, *presencev1.Presence](),
	}
	n.hub.Set(struct{}{}, &presencev1.Presence{})
	return n
}

// Presence is what is told of the node now.
func (n *Node) Presence() *presencev1.Presence {
	p, _ := n.hub.Get(struct{}{}) // set in New and never deleted
	return p
}

// Follow calls tell with the presence now and after each change, until ctx ends or
// tell fails.
func (n *Node) Follow(ctx context.Context, tell func(*presencev1.Presence) error) error {
	for ev := range n.hub.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Run tells of the node until ctx ends, and then withdraws it, unless it ends
// because its supervisor died. It is ready at once:
// what the neighbours and the coordinator do holds nobody up.
func (n *Node) Run(ctx context.Context, ready func()) (err error) {
	j, _, err := journal.Open(journal.Options{Path: n.cfg.Journal, Kind: "presence", Version: 1, Log: n.log})
	if err != nil {
		return err
	}
	notes := &notes{journal: j}
	defer func() { err = notes.close(err) }()
	s, err := newState(n.cfg, n.deps, notes, time.Now())
	if err != nil {
		return err
	}

	var wg sync.WaitGroup
	wg.Go(func() { n.deps.Link.Follow(ctx, n.observer(ctx, s.link)) })
	for i, r := range n.deps.Required {
		wg.Go(func() { r.Capability.Follow(ctx, n.observer(ctx, s.required[i])) })
	}
	wg.Go(func() { n.followRecord(ctx) })
	wg.Go(func() { n.followAdmission(ctx) })
	if n.deps.Pressure != nil {
		wg.Go(func() {
			n.deps.Pressure.Follow(ctx, func(all []*resourcev1.Condition) { n.send(ctx, func(s *state) { s.hearPressure(time.Now(), all) }) })
		})
	}
	wg.Go(func() { n.keepSession(ctx, s.session.ID) })
	ready()
	n.loop(ctx, s)
	wg.Wait() // all of the above end with ctx
	if cause := context.Cause(ctx); errors.Is(cause, leash.ErrParentGone) {
		return cause // a crash is not a stop: the next presence resumes the session
	}
	n.withdraw(ctx, s)
	return context.Cause(ctx)
}

// loop is the owner of the state.
func (n *Node) loop(ctx context.Context, s *state) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-n.events:
			event(s)
		case <-timer.C:
			s.addresses = addresses(n.cfg.Bridge)
		}
		due := n.tell(ctx, s)
		timer.Reset(max(0, min(time.Until(due), tick)))
	}
}

// tell says how the node is, reports it if need be, and returns when to look again.
func (n *Node) tell(ctx context.Context, s *state) time.Time {
	now := time.Now()
	conditions, due := s.conditions(now)
	n.announce(s, conditions)
	if away := s.away(); n.away.Swap(away) != away {
		n.renewNow()
	}
	n.deps.Admission.Told(s.record.GetNode().GetStatus().GetCordoned() || s.record.GetNode().GetSpec().GetCordoned())
	status, again := s.report(now, conditions)
	if status != nil {
		n.report(ctx, s, status, now)
	}
	if !again.IsZero() && again.Before(due) {
		due = again
	}
	return due
}

// send hands an event to the owner of the state.
func (n *Node) send(ctx context.Context, event func(*state)) {
	select {
	case n.events <- event:
	case <-ctx.Done():
	}
}

// observer hands what is said of a capability to the owner of the state. A link
// that is there again makes a renewal worth a try.
func (n *Node) observer(ctx context.Context, t *condition.Tracked) func(condition.Observation) {
	return func(o condition.Observation) {
		n.send(ctx, func(s *state) {
			t.Observe(time.Now(), o)
			if t == s.link && o.Answer == condition.Serving {
				n.renewNow()
			}
		})
	}
}
