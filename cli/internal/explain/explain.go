// Package explain says why a sandbox is not as it should be.
//
// It owns the way from what is known (its status and spec, its node's record) to
// an explanation: how it is and since when, the causes from the outermost in, what it
// waits for, and what to do next. It is pure and never asks anybody. In the trail it
// stands behind "staddle explain".
package explain

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/sandbox"
)

// Facts are what is known.
type Facts struct {
	// Sandbox is the one to explain.
	Sandbox *sandbox.Sandbox
	// Node is the record of the node that it is on. Nil if there is none, or nobody was asked.
	Node *resourcev1.Resource
	// Trouble is what its node could not do for it, and tries again. Empty if nothing.
	Trouble string
}

// Cause is one link of the chain.
type Cause struct {
	// What is so, in a few words, such as "attempt 3" or "condition Ready of container main".
	What string `json:"what"`
	// Reason is the word for machines. May be empty.
	Reason string `json:"reason,omitempty"`
	// Text says it for people. May be empty.
	Text string `json:"text,omitempty"`
	// Since is when it became so. Nil if nobody knows.
	Since *time.Time `json:"since,omitempty"`
}

// Explanation is the answer.
type Explanation struct {
	// Healthy is true when it is as its spec asks, and ready if that is watched.
	Healthy bool `json:"healthy"`
	// State is how it is, in a few words.
	State string `json:"state"`
	// Since is when it became so. Nil if nobody knows.
	Since *time.Time `json:"since,omitempty"`
	// Causes of that, the outermost first.
	Causes []Cause `json:"causes"`
	// WaitsFor is what has to happen for it to go on. Empty if it waits for nothing.
	WaitsFor string `json:"waits_for,omitempty"`
	// Next is what a person can do. Empty if there is nothing to do.
	Next string `json:"next,omitempty"`
}

// Of explains.
func Of(f Facts) Explanation {
	s := f.Sandbox
	e := Explanation{State: state(s), Since: moment(s.Status.GetPhaseAt()), Healthy: healthy(f), Causes: []Cause{}}
	if len(f.nodeCauses()) > 0 {
		e.Causes = append(e.Causes, f.nodeCauses()...)
	}
	e.Causes = append(e.Causes, ownCauses(f)...)
	if e.Healthy {
		return e
	}
	a := f.advice()
	fill := strings.NewReplacer("NAME", s.Name, "NODE", s.Node, "CONTAINER", endedContainer(s), "WHEN", nextAttempt(s))
	e.WaitsFor, e.Next = fill.Replace(a.waits), fill.Replace(a.next)
	return e
}

const (
	running = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	stopped = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed  = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	none    = resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED
	yes     = resourcev1.ConditionState_CONDITION_STATE_TRUE
)

// healthy says whether it is as its spec asks.
func healthy(f Facts) bool {
	s := f.Sandbox
	switch {
	case s.Removing || f.Trouble != "" || f.away():
		return false
	case s.Status.GetObservedGeneration() < s.Generation:
		return false
	case s.Spec.GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED:
		return s.Status.GetPhase() == stopped || s.Status.GetPhase() == failed
	case s.Status.GetPhase() == stopped && s.AtRest():
		return true // its work is done
	case s.Status.GetPhase() != running || s.Status.GetReason() != "":
		return false
	}
	ready, _ := s.Ready()
	return ready == yes || ready == resourcev1.ConditionState_CONDITION_STATE_UNSPECIFIED && !s.Watched()
}

// state is how it is, in a few words.
func state(s *sandbox.Sandbox) string {
	phase := strings.ToLower(strings.TrimPrefix(s.Status.GetPhase().String(), "SANDBOX_PHASE_"))
	switch {
	case s.Status.GetTornDownAt() != nil:
		return "removed"
	case s.Removing:
		return "being removed, now " + phase
	case s.Status.GetPhase() == none && s.Node == "":
		return "not placed on a node yet"
	case s.Status.GetPhase() == none:
		return "placed on node " + s.Node + ", which has not said anything of it yet"
	case s.Status.GetNextAt() != nil:
		return fmt.Sprintf("waiting before attempt %d", s.Status.GetAttempt())
	case s.Status.GetPhase() == running:
		if ready, _ := s.Ready(); ready != yes {
			return "running, not ready"
		}
		return "running and ready"
	}
	return phase
}

// ownCauses are what its own status says.
func ownCauses(f Facts) []Cause {
	s := f.Sandbox
	var all []Cause
	if s.Status.GetPhase() == none {
		if s.Waiting != "" {
			all = append(all, Cause{What: "placement", Text: s.Waiting, Since: &s.CreatedAt})
		}
		return all
	}
	if reason, message := s.Status.GetReason(), s.Status.GetMessage(); reason != "" || message != "" {
		what := fmt.Sprintf("attempt %d", s.Status.GetAttempt())
		all = append(all, Cause{What: what, Reason: reason, Text: message, Since: moment(s.Status.GetPhaseAt())})
	}
	if reason := s.Status.GetCauseReason(); reason != "" {
		all = append(all, Cause{What: "failed step", Reason: reason})
	}
	if s.Status.GetObservedGeneration() < s.Generation {
		all = append(all, Cause{What: "spec", Text: fmt.Sprintf(
			"its node has seen generation %d of the spec, the newest is %d", s.Status.GetObservedGeneration(), s.Generation)})
	}
	if f.Trouble != "" && f.Trouble != s.Status.GetMessage() {
		all = append(all, Cause{What: "trouble", Text: f.Trouble})
	}
	all = append(all, conditions("", s.Status.GetConditions())...)
	for _, c := range s.Status.GetContainers() {
		all = append(all, conditions(" of container "+c.GetName(), c.GetConditions())...)
	}
	for _, c := range s.Status.GetContainers() {
		if text := sandbox.KillsForMemory(c.GetOomKills(), c.GetOomKillsBeside()); text != "" && c.GetExit() == nil {
			all = append(all, Cause{What: "memory of container " + c.GetName(), Text: text})
		}
	}
	if e := lastExit(s); e != nil {
		all = append(all, Cause{
			What: fmt.Sprintf("container %s in attempt %d", e.GetContainer(), e.GetAttempt()), Text: ending(e), Since: moment(e.GetExitedAt()),
		})
	}
	return all
}

// conditions are those that do not say yes.
func conditions(of string, all []*resourcev1.Condition) []Cause {
	var list []Cause
	for _, c := range all {
		if c.GetState() != yes {
			list = append(list, Cause{What: "condition " + c.GetType() + of, Text: c.GetReason(), Since: moment(c.GetSince())})
		}
	}
	return list
}

// away says of a sandbox on a node that the node is not heard of.
func (f Facts) away() bool {
	p := f.Node.GetNode().GetPlacement()
	return p.GetLostSince() != nil || p.GetLeftAt() != nil
}

// Informs says that a condition of a node tells of its machine what no work depends on.
func Informs(c *resourcev1.Condition) bool { return c.GetType() == "AppArmor" }

// nodeCauses are what is wrong with its node.
func (f Facts) nodeCauses() []Cause {
	node := f.Node.GetNode()
	what := "node " + f.Node.GetMeta().GetName()
	switch p := node.GetPlacement(); {
	case f.Node == nil:
		return nil
	case p.GetLostSince() != nil:
		return []Cause{{What: what, Reason: nodeLost, Text: "the coordinator has lost it; this is what it said last", Since: moment(p.GetLostSince())}}
	case p.GetLeftAt() != nil:
		return []Cause{{What: what, Reason: nodeLeft, Text: "it has left; this is what it said last", Since: moment(p.GetLeftAt())}}
	}
	var all []Cause
	for _, c := range node.GetStatus().GetConditions() {
		// Of a node under pressure the condition is TRUE, and nothing new is placed there.
		if Informs(c) {
			continue
		}
		if bad := c.GetState() != yes; bad != strings.HasSuffix(c.GetType(), "Pressure") && c.GetReason() != "" {
			all = append(all, Cause{What: what + ": condition " + c.GetType(), Text: c.GetReason(), Since: moment(c.GetSince())})
		}
	}
	return all
}

// lastExit is the newest end that is not of an init container that did its work.
func lastExit(s *sandbox.Sandbox) *resourcev1.ContainerExit {
	all := s.Status.GetExits()
	for i := len(all) - 1; i >= 0; i-- {
		e := all[i]
		if e.GetAttempt()+1 < s.Status.GetAttempt() {
			return nil // long ago
		}
		if e.GetCode() != 0 || e.GetUnknown() || !isInit(s, e.GetContainer()) {
			return e
		}
	}
	return nil
}

func isInit(s *sandbox.Sandbox, name string) bool {
	for _, c := range s.Spec.GetContainers() {
		if c.GetName() == name {
			return c.GetInit()
		}
	}
	return false
}

// endedContainer is the container to look at first.
func endedContainer(s *sandbox.Sandbox) string {
	if e := lastExit(s); e != nil {
		return e.GetContainer()
	}
	for _, c := range s.Spec.GetContainers() {
		if !c.GetInit() {
			return c.GetName()
		}
	}
	return "main"
}

func nextAttempt(s *sandbox.Sandbox) string {
	if at := s.Status.GetNextAt(); at != nil {
		return at.AsTime().Local().Format("15:04:05")
	}
	return "soon"
}

// ending says how a container ended.
func ending(e *resourcev1.ContainerExit) string {
	switch {
	case e.GetUnknown():
		return "ended, nobody can tell how"
	case e.GetOomKilled():
		return "was ended for using more memory than its limit"
	case e.GetSignal() != 0:
		return fmt.Sprintf("was ended by signal %d", e.GetSignal())
	}
	return fmt.Sprintf("ended with code %d", e.GetCode())
}

func moment(t *timestamppb.Timestamp) *time.Time {
	if t.GetSeconds() == 0 {
		return nil
	}
	at := t.AsTime()
	return &at
}
