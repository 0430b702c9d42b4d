// Package sandbox is what the command line knows of a sandbox, wherever it
// learnt it: from the coordinator's record or from the host of one node.
//
// It owns the common view, the choice of one by name or uid, and the pure
// questions that commands ask of a status: does it run, has it come to rest, how
// did it end. It must never call anybody. In the trail it sits between the
// targets and the commands.
package sandbox

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Sandbox is one sandbox as its target knows it.
type Sandbox struct {
	UID, Name string
	// Manager is "cluster" or "local".
	Manager string
	// Node is the name of the node that has it. Empty when it has none yet.
	Node       string
	Labels     map[string]string
	Generation uint64
	Spec       *resourcev1.SandboxSpec
	// Status is never nil; without one it is empty.
	Status *resourcev1.SandboxStatus
	// Waiting says why it has no node yet.
	Waiting string
	// Removing is true once its removal was accepted.
	Removing  bool
	CreatedAt time.Time
	// Record is the whole as the target gave it.
	Record proto.Message
}

// Event is one message of a watch.
type Event struct {
	// Sandbox is the one that is there, has changed or is gone. Nil marks that
	// everything that was there has been sent.
	Sandbox *Sandbox
	// Gone is true when it is gone for good.
	Gone bool
}

// Running reports whether its containers run as the newest spec asks.
func (s *Sandbox) Running() bool {
	return s.Status.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING && s.current()
}

// current reports whether the status is about the newest spec.
func (s *Sandbox) current() bool { return s.Status.GetObservedGeneration() >= s.Generation }

// AtRest reports whether the sandbox has ended and nothing starts it again by
// itself: it was asked to stop, or its restart policy says so.
func (s *Sandbox) AtRest() bool {
	if s.Status.GetTornDownAt() != nil {
		return true
	}
	phase := s.Status.GetPhase()
	stopped := phase == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed := phase == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	if !s.current() || !stopped && !failed {
		return false
	}
	if s.Spec.GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		return true
	}
	switch s.Spec.GetRestartPolicy() {
	case resourcev1.RestartPolicy_RESTART_POLICY_NEVER:
		return true
	case resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE:
		return stopped
	default:
		return false
	}
}

// Failed reports whether an attempt failed before its containers ran, and why.
// A sandbox that is started again by its policy counts as well: its first
// failure is what a person wants to know.
func (s *Sandbox) Failed() (string, bool) {
	if !s.current() {
		return "", false
	}
	failed := s.Status.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	retried := s.Status.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING && s.Status.GetNextAt() != nil
	if !failed && !retried {
		return "", false
	}
	return s.Why(), true
}

// Ready is whether it can do its work now, and why not. Unspecified if its node does
// not say.
func (s *Sandbox) Ready() (state resourcev1.ConditionState, why string) {
	for _, c := range s.Status.GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetState(), c.GetReason()
		}
	}
	return resourcev1.ConditionState_CONDITION_STATE_UNSPECIFIED, ""
}

// Watched says whether its spec says how to find out that it is ready, beside that
// it runs.
func (s *Sandbox) Watched() bool {
	return slices.ContainsFunc(s.Spec.GetContainers(), func(c *resourcev1.ContainerSpec) bool {
		return len(c.GetPorts()) > 0 || c.GetStartupProbe() != nil || c.GetReadinessProbe() != nil
	})
}

// Why says in words why the sandbox is as it is.
func (s *Sandbox) Why() string {
	switch st := s.Status; {
	case st.GetMessage() != "":
		return st.GetMessage()
	case st.GetReason() != "":
		return st.GetReason()
	case s.Running():
		_, why := s.Ready()
		return why
	case st.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED && s.Waiting != "":
		return s.Waiting
	default:
		return s.killsForMemory()
	}
}

// killsForMemory says of a sandbox that goes on that the kernel ended some of its
// processes.
func (s *Sandbox) killsForMemory() string {
	var n, beside uint64
	for _, c := range s.Status.GetContainers() {
		n, beside = n+c.GetOomKills(), beside+c.GetOomKillsBeside()
	}
	return KillsForMemory(n, beside)
}

// KillsForMemory says how many processes the kernel ended for memory, and how many of them
// were not of the program itself. Empty if there are none.
func KillsForMemory(n, beside uint64) string {
	var said string
	switch n {
	case 0:
		return ""
	case 1:
		said = "1 process was ended for using more memory than the limit"
	default:
		said = fmt.Sprintf("%d processes were ended for using more memory than the limit", n)
	}
	const kind = "a probe, a pre-stop command or something executed"
	switch {
	case beside == 0:
		return said
	case beside >= n && n == 1:
		return said + ": " + kind
	case beside == 1:
		return said + "; 1 of them was " + kind
	}
	return fmt.Sprintf("%s; %d of them were each %s", said, beside, kind)
}

// Exit returns how a container of the newest attempt ended, or nil.
func (s *Sandbox) Exit(container string) *resourcev1.ContainerExit {
	for _, c := range s.Status.GetContainers() {
		if c.GetName() == container && c.GetExit() != nil {
			return c.GetExit()
		}
	}
	for i := len(s.Status.GetExits()) - 1; i >= 0; i-- {
		if e := s.Status.GetExits()[i]; e.GetContainer() == container && e.GetAttempt() == s.Status.GetAttempt() {
			return e
		}
	}
	return nil
}
