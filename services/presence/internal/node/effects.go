package node

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	// renewTimeout bounds one renewal.
	renewTimeout = 5 * time.Second
	// withdrawTimeout bounds the farewell.
	withdrawTimeout = 2 * time.Second
)

var watchAgain = backoff.Policy{Initial: 20 * time.Millisecond, Cap: time.Second, Stable: 10 * time.Second}

// announce tells whoever watches, and the log when READY changes.
func (n *Node) announce(s *state, conditions []*resourcev1.Condition) {
	ready := conditions[len(conditions)-1]
	p := &presencev1.Presence{
		Ready:      ready.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE,
		Conditions: conditions[:len(conditions)-1], NodeUid: s.session.NodeUID, Admission: s.admission,
	}
	if s.session.open(boottime.Now()) {
		p.SessionId, p.RenewedAt = s.session.ID, timestamppb.New(s.session.renewedAt)
	}
	n.register(s, p.GetReady())
	p.RegisteredAt = s.registered
	if ready.GetState() != s.ready {
		n.log.Info("readiness changed", logging.From(word(s.ready)), logging.To(word(ready.GetState())), logging.Reason(ready.GetReason()))
		s.ready = ready.GetState()
	}
	if !proto.Equal(p, n.Presence()) {
		n.hub.Set(struct{}{}, p)
	}
}

func word(c resourcev1.ConditionState) string {
	switch c {
	case resourcev1.ConditionState_CONDITION_STATE_TRUE:
		return "ready"
	case resourcev1.ConditionState_CONDITION_STATE_FALSE:
		return "not ready"
	default:
		return "unknown"
	}
}

// register notes the first READY. What the record says of it is the truth.
func (n *Node) register(s *state, ready bool) {
	at := s.registered
	if told := s.record.GetNode().GetPlacement().GetRegisteredAt(); told != nil {
		at = told
	} else if at == nil && ready {
		at = timestamppb.Now()
	}
	if at == nil || proto.Equal(at, s.registered) {
		return
	}
	s.registered = at
	if err := s.notes.keepRegistered(at); err != nil {
		n.log.Warn("registration not kept", logging.Err(err))
	}
}

// report hands a status over. Its seq is kept before, so that none is used twice.
// Where it cannot be kept, on a full disk, the cluster is told all the same: if a
// restart then uses the seq again, the record shows that and the next one follows.
func (n *Node) report(ctx context.Context, s *state, status *resourcev1.NodeStatus, now time.Time) {
	if status != s.sent {
		if err := s.notes.keepStatus(status); err != nil {
			n.log.Warn("status not kept", logging.Err(err))
		}
	}
	s.sent, s.sentAt = status, now
	err := n.deps.Cluster.Report(ctx, &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: n.cfg.Name, Uid: s.session.NodeUID},
		Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Status: status}},
	})
	if err != nil && ctx.Err() == nil {
		n.log.Warn("status not reported", logging.Err(err), logging.RetryIn(resendAfter))
	}
}

// keepSession renews the session until ctx ends, beginning with the one of the
// last life.
func (n *Node) keepSession(ctx context.Context, id int64) {
	again := backoff.Policy{Initial: 200 * time.Millisecond, Cap: n.cfg.TTL / 3} // a link that is made cuts it short
	for attempt := 0; ctx.Err() == nil; {
		if n.away.Load() {
			id = n.leave(ctx, id)
			continue
		}
		sentAt := boottime.Now()
		call, cancel := context.WithTimeout(ctx, min(renewTimeout, n.cfg.TTL/2))
		session, err := n.deps.Cluster.Renew(call, id, n.cfg.TTL)
		cancel()
		wait := time.Duration(float64(n.cfg.TTL) / 3 * (0.8 + 0.2*rand.Float64()))
		if err == nil {
			id, attempt = session.ID, 0
			n.send(ctx, func(s *state) { n.renewed(s, session, sentAt) })
		} else {
			attempt++
			wait = min(wait, again.Delay(attempt, rand.Float64()))
			n.send(ctx, func(s *state) { n.notRenewed(s, err) })
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-n.renew:
		}
		timer.Stop()
	}
}

// renewNow has the session looked at now.
func (n *Node) renewNow() {
	select {
	case n.renew <- struct{}{}:
	default: // it is being done anyway
	}
}

// leave ends the session before a shutdown of the machine, while a coordinator that
// runs on it still answers: a session that stays open keeps the next boot waiting. It
// returns the session there is once it is worth a look.
func (n *Node) leave(ctx context.Context, id int64) int64 {
	if id != 0 {
		call, cancel := context.WithTimeout(ctx, withdrawTimeout)
		err := n.deps.Cluster.End(call, id)
		cancel()
		if err != nil {
			n.send(ctx, func(s *state) { n.notRenewed(s, err) })
		} else {
			id = 0
			n.send(ctx, n.ended)
		}
	}
	select {
	case <-ctx.Done():
	case <-n.renew:
	}
	return id
}

// ended takes note that there is no session.
func (n *Node) ended(s *state) {
	n.log.Info("session ended")
	s.session.Session = Session{NodeUID: s.session.NodeUID}
	s.session.failure = goingDown
	if err := s.notes.keepSession(s.session.Session); err != nil {
		n.log.Warn("session not kept", logging.Err(err))
	}
}

func (n *Node) renewed(s *state, session Session, sentAt time.Duration) {
	if old := s.session.Session; old.ID != session.ID || old.NodeUID != session.NodeUID {
		n.log.Info("session opened", logging.Duration(session.TTL))
		if err := s.notes.keepSession(session); err != nil {
			n.log.Warn("session not kept", logging.Err(err))
		}
	}
	s.session.Session, s.session.failure = session, ""
	s.session.sentAt, s.session.renewedAt = sentAt, time.Now()
}

func (n *Node) notRenewed(s *state, err error) {
	if s.session.failure == "" {
		n.log.Warn("session not renewed", logging.Err(err))
	}
	s.session.failure = err.Error()
	if fault.KindOf(err) == fault.Denied { // an answer: there is no session
		s.session.TTL = 0
	}
}

// followRecord reads the node's own record, and what the mirror is worth.
func (n *Node) followRecord(ctx context.Context) {
	for attempt := 0; ; {
		began := time.Now()
		err := n.deps.Cluster.Watch(ctx, func(msg *clusteraccessv1.WatchResourcesResponse) {
			n.send(ctx, func(s *state) { s.learn(msg) })
		})
		if ctx.Err() != nil {
			return
		}
		attempt = watchAgain.Next(attempt, time.Since(began))
		n.log.Debug("stream ended", logging.Component("clusteraccess"), logging.Err(err))
		n.send(ctx, func(s *state) { s.sentAt = time.Time{} }) // what was handed over may be lost
		if backoff.Wait(ctx, watchAgain.Delay(attempt, rand.Float64())) != nil {
			return
		}
	}
}

// followAdmission hears whether the node was cordoned or drained.
func (n *Node) followAdmission(ctx context.Context) {
	for ctx.Err() == nil { // a reader that was too far behind begins anew
		err := n.deps.Admission.Follow(ctx, func(a *presencev1.Admission) error {
			n.send(ctx, func(s *state) { s.admission = a })
			return nil
		})
		if err != nil && ctx.Err() == nil {
			n.log.Debug("stream ended", logging.Component("drain"), logging.Err(err))
		}
	}
}

// learn takes one message of the stream of node records.
func (s *state) learn(msg *clusteraccessv1.WatchResourcesResponse) {
	switch e := msg.GetEvent().(type) {
	case *clusteraccessv1.WatchResourcesResponse_Changed:
		if e.Changed.GetMeta().GetName() == s.cfg.Name {
			s.record = e.Changed
		}
	case *clusteraccessv1.WatchResourcesResponse_Deleted:
		if e.Deleted.GetMeta().GetUid() == s.record.GetMeta().GetUid() {
			s.record = nil
		}
	case *clusteraccessv1.WatchResourcesResponse_Mirror:
		s.linkless = e.Mirror.GetReason()
	}
}

// withdraw takes the node out before anything else of it stops: not ready, and the
// session ended as a leave and not a loss.
func (n *Node) withdraw(ctx context.Context, s *state) {
	for len(n.events) > 0 { // the last renewal may be among them
		(<-n.events)(s)
	}
	s.leaving = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	n.tell(ctx, s)
	if s.session.ID == 0 || !s.session.open(boottime.Now()) {
		return
	}
	if err := n.deps.Cluster.End(ctx, s.session.ID); err != nil {
		n.log.Warn("session not ended", logging.Err(err))
		return
	}
	n.ended(s)
}
