package node

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/boottime"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/presence/internal/condition"
)

// resendAfter is how long a report may take to show in the mirror.
const resendAfter = 10 * time.Second

// goingDown is why a node is not ready, and has no session, before a shutdown.
const goingDown = "the machine is being shut down"

// state is all that is known of the node. It belongs to the loop.
type state struct {
	cfg      Config
	notes    *notes
	types    []string
	required []*condition.Tracked
	link     *condition.Tracked

	session   session
	record    *resourcev1.Resource // of this node, nil while the mirror shows none
	linkless  string               // why the mirror is not live
	capacity  *resourcev1.NodeCapacity
	addresses []string
	gateway   string
	admission *presencev1.Admission // nil before it was heard of
	pressure  []*resourcev1.Condition

	sent       *resourcev1.NodeStatus // newest that was handed over
	sentAt     time.Time
	ready      resourcev1.ConditionState // told last
	readyAt    *timestamppb.Timestamp
	registered *timestamppb.Timestamp
	leaving    bool
}

// session is what is known of the session.
type session struct {
	Session
	sentAt    time.Duration // boot time of the last acknowledged renewal
	renewedAt time.Time     // the same by the wall clock
	failure   string        // of the last renewal
}

// open says whether the coordinator can still think of the session as open, by a
// clock that no jump moves.
func (s session) open(now time.Duration) bool {
	return s.ID != 0 && s.TTL > 0 && now < s.sentAt+s.TTL
}

// away says whether the machine goes down and nothing runs on it any more.
func (s *state) away() bool {
	return s.admission.GetShutdown().GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE
}

func newState(cfg Config, deps Deps, notes *notes, now time.Time) (*state, error) {
	s := &state{
		cfg: cfg, notes: notes, ready: resourcev1.ConditionState_CONDITION_STATE_UNKNOWN,
		link: condition.Track(typeLink, now), addresses: addresses(cfg.Bridge),
	}
	if deps.Pressure != nil {
		for _, kind := range heardOfHost {
			s.pressure = append(s.pressure, unheard(kind, now))
		}
	}
	if cfg.Gateway != nil {
		s.gateway = cfg.Gateway(s.addresses)
	}
	for _, r := range deps.Required {
		s.types = append(s.types, r.Type)
		s.required = append(s.required, condition.Track(r.Type, now))
	}
	var err error
	if s.capacity, err = capacity(); err != nil {
		return nil, err
	}
	s.session.Session, s.sent, s.registered, err = notes.load()
	return s, err
}

// conditions says how all capabilities are, the link, and READY last; and when
// that may change by itself.
func (s *state) conditions(now time.Time) ([]*resourcev1.Condition, time.Time) {
	due := now.Add(tick)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	var all []*resourcev1.Condition
	for _, t := range s.required {
		c, at := t.Condition(now, s.cfg.HoldDown)
		sooner(at)
		all = append(all, c)
	}
	link, at := s.linkCondition(now)
	sooner(at)
	all = append(all, link)
	ready := s.conjunction(now, all)
	for _, c := range s.pressure {
		all = append(all, proto.CloneOf(c)) // not among what ready depends on: what runs goes on
	}
	all = append(all, ready)
	keepSince(all, s.record.GetNode().GetStatus(), s.sent)
	return all, due
}

// typeAppArmor is the type of whether workloads have a profile of AppArmor.
const typeAppArmor = "AppArmor"

// heardOfHost are the types of what the machine may run short of, and of how it confines.
var heardOfHost = []string{"MemoryPressure", "DiskPressure", "PIDPressure", typeAppArmor}

// hearPressure takes what is said of the machine; nil says that nobody does. A shortage
// goes on until somebody says that it is over, and how the machine confines does not
// change while nobody speaks.
func (s *state) hearPressure(now time.Time, said []*resourcev1.Condition) {
	heard := map[string]*resourcev1.Condition{}
	for _, c := range said {
		heard[c.GetType()] = c
	}
	for i, kind := range heardOfHost {
		old := s.pressure[i]
		switch c := heard[kind]; {
		case c != nil:
			s.pressure[i] = c
		case kind != typeAppArmor && old.GetState() != resourcev1.ConditionState_CONDITION_STATE_TRUE:
			s.pressure[i] = unheard(kind, now)
		}
	}
}

func unheard(kind string, now time.Time) *resourcev1.Condition {
	return &resourcev1.Condition{
		Type: kind, State: resourcev1.ConditionState_CONDITION_STATE_UNKNOWN, Reason: "sandboxhost has not said yet", Since: timestamppb.New(now),
	}
}

// conjunction is READY.
func (s *state) conjunction(now time.Time, all []*resourcev1.Condition) *resourcev1.Condition {
	ready := &resourcev1.Condition{Type: condition.Ready}
	ready.State, ready.Reason = condition.Conjunction(all)
	if s.admission.GetShutdown() != nil {
		ready.State, ready.Reason = resourcev1.ConditionState_CONDITION_STATE_FALSE, goingDown
	}
	if s.leaving {
		ready.State, ready.Reason = resourcev1.ConditionState_CONDITION_STATE_FALSE, "presence is stopping"
	}
	if ready.GetState() != s.ready || s.readyAt == nil {
		s.readyAt = timestamppb.New(now)
	}
	ready.Since = s.readyAt
	return ready
}

// linkCondition joins link and session: the link is held down like a crash, the
// session has its own time, which nobody has to tell.
func (s *state) linkCondition(now time.Time) (*resourcev1.Condition, time.Time) {
	c, due := s.link.Condition(now, s.cfg.HoldDown)
	if c.GetState() == resourcev1.ConditionState_CONDITION_STATE_FALSE {
		if s.linkless != "" {
			c.Reason = s.linkless
		}
		return c, due
	}
	left := s.session.sentAt + s.session.TTL - boottime.Now()
	if s.session.open(boottime.Now()) {
		if end := now.Add(left); due.IsZero() || end.Before(due) {
			due = end
		}
		return c, due
	}
	if s.session.failure == "" { // the first renewal is under way
		c.State, c.Reason = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN, "no session yet"
		return c, due
	}
	c.State, c.Reason = resourcev1.ConditionState_CONDITION_STATE_FALSE, "no session: "+s.session.failure
	return c, due
}

// report decides whether the node's status has to be handed over: when the record
// does not say what is the case, and no report is under way that does. It returns
// the status, without seq, or when to look again.
func (s *state) report(now time.Time, conditions []*resourcev1.Condition) (*resourcev1.NodeStatus, time.Time) {
	ready := conditions[len(conditions)-1]
	if s.session.NodeUID == "" || s.admission == nil || ready.GetState() == resourcev1.ConditionState_CONDITION_STATE_UNKNOWN {
		return nil, time.Time{} // nothing to tell about, or not enough
	}
	status := &resourcev1.NodeStatus{
		Conditions: conditions, Capacity: s.capacity, Addresses: s.addresses, GatewayAddress: s.gateway,
		Version: s.cfg.Version, BootId: s.cfg.BootID,
		Cordoned: s.admission.GetCordoned(), CordonReason: s.admission.GetCordonReason(), Holding: s.admission.GetHolding(),
	}
	shown := s.record.GetNode().GetStatus()
	counts := shown.GetSeq() > s.record.GetNode().GetPlacement().GetStatusSeq() // what was said before the session does not
	if counts && sameStatus(shown, status) && shown.GetSeq() >= s.sent.GetSeq() {
		return nil, time.Time{}
	}
	if s.sent != nil && sameStatus(s.sent, status) && s.sent.GetSeq() > shown.GetSeq() {
		if at := s.sentAt.Add(resendAfter); now.Before(at) {
			return nil, at
		}
		return s.sent, time.Time{}
	}
	status.Seq = max(s.sent.GetSeq(), shown.GetSeq()) + 1
	status.ReportedAt = timestamppb.New(now)
	return status, time.Time{}
}

// keepSince takes over since when a state holds from what was told before, newest
// last: a restart of presence changes no state.
func keepSince(conditions []*resourcev1.Condition, before ...*resourcev1.NodeStatus) {
	for _, c := range conditions {
		for _, b := range before {
			if old := find(b, c.GetType()); old != nil && old.GetState() == c.GetState() {
				c.Since = old.GetSince()
			}
		}
	}
}

func find(s *resourcev1.NodeStatus, kind string) *resourcev1.Condition {
	for _, c := range s.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// sameStatus compares what two statuses say, without when it was said, and without
// how long a reason has lasted.
func sameStatus(a, b *resourcev1.NodeStatus) bool {
	return proto.Equal(essence(a), essence(b))
}

func essence(s *resourcev1.NodeStatus) *resourcev1.NodeStatus {
	s = proto.CloneOf(s)
	s.Seq, s.ReportedAt = 0, nil
	for _, c := range s.GetConditions() {
		c.Since, c.Reason = nil, stem(c.GetReason())
	}
	return s
}
