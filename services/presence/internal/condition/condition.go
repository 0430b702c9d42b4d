// Package condition owns what is said of a capability over time: yes, no, or not
// known yet, with the reason and since when.
//
// A capability that crashed is given a hold-down before it counts as away, because
// it is back within a second; one that was asked to stop counts as away at once.
// All of it is pure: time comes in as an argument. It must never ask anybody. In
// the trail it lies between the neighbours' health and the node's READY.
package condition

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Ready is the type of the conjunction.
const Ready = "Ready"

// maxReason bounds the text of a reason.
const maxReason = 1024

// Answer is what a capability said about itself.
type Answer int

// The answers.
const (
	// Unheard is before the first answer.
	Unheard Answer = iota
	// Serving: it can do its job.
	Serving
	// Away: it does not answer, or cannot do its job now.
	Away
	// Gone: it was asked to end, or has lost for certain what it needs.
	Gone
)

// Observation is one answer, and why it is not Serving.
type Observation struct {
	// Answer that was given.
	Answer Answer
	// Reason in one sentence, empty when Serving.
	Reason string
}

// Tracked is one capability over time.
type Tracked struct {
	kind  string
	last  Observation
	since time.Time // when it began, or ceased, to serve
	state resourcev1.ConditionState
	at    time.Time // when state was entered
}

// Track begins to track a capability of which nothing was heard.
func Track(kind string, now time.Time) *Tracked {
	return &Tracked{
		kind: kind, since: now, at: now, last: Observation{Reason: "not asked yet"},
		state: resourcev1.ConditionState_CONDITION_STATE_UNKNOWN,
	}
}

// Observe takes the newest answer.
func (t *Tracked) Observe(now time.Time, o Observation) {
	if (o.Answer == Serving) != (t.last.Answer == Serving) {
		t.since = now
	}
	t.last = o
}

// Condition says how it is now, and when, without another observation, that will
// change; zero if it will not.
func (t *Tracked) Condition(now time.Time, holdDown time.Duration) (*resourcev1.Condition, time.Time) {
	state, due := t.judge(now, holdDown)
	if state != t.state {
		t.state, t.at = state, now
	}
	c := &resourcev1.Condition{Type: t.kind, State: t.state, Since: timestamppb.New(t.at)}
	if state != resourcev1.ConditionState_CONDITION_STATE_TRUE {
		c.Reason = clip(t.last.Reason)
	}
	return c, due
}

func (t *Tracked) judge(now time.Time, holdDown time.Duration) (resourcev1.ConditionState, time.Time) {
	switch t.last.Answer {
	case Serving:
		return resourcev1.ConditionState_CONDITION_STATE_TRUE, time.Time{}
	case Gone:
		return resourcev1.ConditionState_CONDITION_STATE_FALSE, time.Time{}
	case Unheard, Away:
	}
	if due := t.since.Add(holdDown); now.Before(due) {
		return t.state, due // held: a crash is over within the hold-down
	}
	return resourcev1.ConditionState_CONDITION_STATE_FALSE, time.Time{}
}

// Conjunction says whether all conditions hold. It is not known while one of them
// is not and none fails.
func Conjunction(all []*resourcev1.Condition) (resourcev1.ConditionState, string) {
	state := resourcev1.ConditionState_CONDITION_STATE_TRUE
	var failed, unknown []string
	for _, c := range all {
		switch c.GetState() {
		case resourcev1.ConditionState_CONDITION_STATE_FALSE:
			failed = append(failed, c.GetType()+": "+c.GetReason())
		case resourcev1.ConditionState_CONDITION_STATE_TRUE:
		default:
			unknown = append(unknown, c.GetType()+": "+c.GetReason())
		}
	}
	switch {
	case len(failed) > 0:
		return resourcev1.ConditionState_CONDITION_STATE_FALSE, clip(strings.Join(failed, "; "))
	case len(unknown) > 0:
		return resourcev1.ConditionState_CONDITION_STATE_UNKNOWN, clip(strings.Join(unknown, "; "))
	}
	return state, ""
}

// TypeOf is the type of a process's condition: "sandbox-agent" is "SandboxAgent".
func TypeOf(process string) string {
	if known, ok := spelled[process]; ok {
		return known
	}
	var b strings.Builder
	for word := range strings.SplitSeq(process, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// spelled are the names that are two words without a dash.
var spelled = map[string]string{"clusteraccess": "ClusterAccess", "sandboxhost": "SandboxHost"}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "")
}
