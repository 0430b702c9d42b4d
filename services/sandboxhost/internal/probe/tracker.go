package probe

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Short names of the states.
const (
	yes = resourcev1.ConditionState_CONDITION_STATE_TRUE
	no  = resourcev1.ConditionState_CONDITION_STATE_FALSE
)

// Outcome is what became of one question.
type Outcome int

// The outcomes.
const (
	// Pass: the answer was yes.
	Pass Outcome = iota + 1
	// Fail: the answer was no, or there was none in time.
	Fail
	// Unknown: the question could not be asked. It says nothing.
	Unknown
)

const (
	defaultFailures = 3
	// maxReason is how much of a reason a condition keeps.
	maxReason = 1024
	// unasked is the reason before there was an answer.
	unasked = "not answered yet"
)

// Tracker makes a condition of many outcomes. It is pure.
type Tracker struct {
	// State is the condition.
	State resourcev1.ConditionState
	// Reason says why it is not yes.
	Reason string
	// Since is when the state was entered.
	Since time.Time
	// Exhausted is true once as many questions in a row have failed as may.
	Exhausted bool

	needed, allowed     uint32
	successes, failures uint32
}

// newTracker begins with what was known before, else with first.
func newTracker(name string, first resourcev1.ConditionState, probe *resourcev1.Probe, before []*resourcev1.Condition) *Tracker {
	t := &Tracker{State: first, needed: max(probe.GetSuccessThreshold(), 1), allowed: probe.GetFailureThreshold()}
	if t.allowed == 0 {
		t.allowed = defaultFailures
	}
	if probe == nil { // a port is open or not
		t.allowed = 1
	}
	if first != yes {
		t.Reason = unasked
	}
	for _, c := range before {
		if c.GetType() == name {
			t.State, t.Reason, t.Since = c.GetState(), c.GetReason(), c.GetSince().AsTime()
		}
	}
	return t
}

// See takes one outcome in and reports whether the condition has changed. The reason
// of a probe changes only with the state, or what is never at rest would be written
// each time; that of ports, of which there are few, each time.
func (t *Tracker) See(outcome Outcome, why string, at time.Time) (changed bool) {
	why = strings.ToValidUTF8(why, "?")
	if len(why) > maxReason {
		why = strings.ToValidUTF8(why[:maxReason-len("…")], "") + "…"
	}
	before := *t
	if t.Since.IsZero() {
		t.Since = at
	}
	switch outcome {
	case Pass:
		t.successes, t.failures, t.Exhausted = t.successes+1, 0, false
		if t.State != yes && t.successes >= t.needed {
			t.State, t.Reason, t.Since = yes, "", at
		}
	case Fail:
		t.successes, t.failures = 0, t.failures+1
		crossed := t.failures >= t.allowed && !t.Exhausted
		t.Exhausted = t.Exhausted || crossed
		if crossed || t.State != yes && (t.Reason == unasked || t.allowed == 1) {
			t.Reason = why
		}
		if crossed && t.State != no {
			t.State, t.Since = no, at
		}
	case Unknown:
	}
	return t.State != before.State || t.Reason != before.Reason || t.Exhausted != before.Exhausted
}

// Condition is the state as records have it.
func (t *Tracker) Condition(name string) *resourcev1.Condition {
	c := &resourcev1.Condition{Type: name, State: t.State, Reason: t.Reason}
	if !t.Since.IsZero() {
		c.Since = timestamppb.New(t.Since)
	}
	return c
}

func orElse(d *durationpb.Duration, unset time.Duration) time.Duration {
	if d == nil {
		return unset
	}
	return d.AsDuration()
}
