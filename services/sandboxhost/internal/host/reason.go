package host

import (
	"fmt"
	"strings"

	"staddle.internal/kit/fault"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Reasons of a phase, for machines.
const (
	// ReasonUnreadable: a container was noted by a release that we cannot read.
	ReasonUnreadable = "UNREADABLE_CONTAINER"
	// ReasonRemoved: its removal was accepted.
	ReasonRemoved = "REMOVED"
	// ReasonStopped: its spec says STOPPED.
	ReasonStopped = "STOPPED_AS_ASKED"
	// ReasonDisconnected: its disconnect policy ran out.
	ReasonDisconnected = "DISCONNECTED"
	// ReasonHeld: a hold applies to it.
	ReasonHeld = "HELD"
	// ReasonReplaced: the wish has another spec.
	ReasonReplaced = "SPEC_REPLACED"
	// ReasonReboot: the machine was started anew.
	ReasonReboot = "NODE_REBOOTED"
	// ReasonTakenDown: the node was taken down.
	ReasonTakenDown = "NODE_TAKEN_DOWN"
	// ReasonExited: containers ended by themselves.
	ReasonExited = "CONTAINER_EXITED"
	// ReasonUnhealthy: a startup or liveness probe says no; the message has the cause.
	ReasonUnhealthy = "UNHEALTHY"
	// ReasonStepFailed: a step cannot succeed; the message has the cause.
	ReasonStepFailed = "STEP_FAILED"
	// ReasonNamespacesLost: the namespaces of an attempt went away.
	ReasonNamespacesLost = "NAMESPACES_LOST"
	// ReasonUnpinned: somebody took a pinned namespace, or the shared memory, of a
	// sandbox that runs away. It goes on with what it has.
	ReasonUnpinned = "NAMESPACES_UNPINNED"
	// ReasonShimSilent: the shim does not answer; the status is as it was seen last.
	ReasonShimSilent = "SHIM_SILENT"
	// ReasonBackoff: waits before the next attempt.
	ReasonBackoff = "BACK_OFF"
	// ReasonRetrying: a step failed and is tried again; the message has the cause.
	ReasonRetrying = "RETRYING"
	// ReasonUnseen: the runtime cannot be asked; the status is as it was seen last.
	ReasonUnseen = "RUNTIME_UNAVAILABLE"
	// ReasonWaitingForCluster: after a reboot, waits to be named by the cluster.
	ReasonWaitingForCluster = "WAITING_FOR_CLUSTER"
	// ReasonInitializing: an init container runs, what follows waits for its end.
	ReasonInitializing = "INITIALIZING"
	// ReasonWaitingForDisk: waits for a disk that it mounts.
	ReasonWaitingForDisk = "WAITING_FOR_DISK"
	// ReasonWaitingForSecrets: the secrets that it refers to are being asked for.
	ReasonWaitingForSecrets = "WAITING_FOR_SECRETS"
	// ReasonSecretMissing: there is no such secret, or it lacks a key; the message
	// says which.
	ReasonSecretMissing = "SECRET_NOT_FOUND"
	// ReasonSecretsAway: the coordinator could not be asked for secrets; the
	// message has the cause.
	ReasonSecretsAway = "SECRETS_UNAVAILABLE"
)

// maxReason is how long the reason of a fault may be in a status.
const maxReason = 128

// sentences say the same for people where the reason alone tells all.
var sentences = map[string]string{
	ReasonUnreadable:        "a container was made by a release of staddle that this one cannot read; it is left alone",
	ReasonRemoved:           "the sandbox is being removed",
	ReasonStopped:           "the spec asks for it",
	ReasonDisconnected:      "the node has had no session at the coordinator for longer than the disconnect policy allows",
	ReasonHeld:              "the node keeps its sandboxes stopped",
	ReasonReplaced:          "the spec was changed",
	ReasonReboot:            "the node was started anew",
	ReasonTakenDown:         "the node was taken down",
	ReasonNamespacesLost:    "the namespaces of the sandbox went away",
	ReasonUnpinned:          "a namespace or the shared memory of the sandbox is not kept on the node any more; what runs goes on, but neither its address nor its network is looked after; stop it and start it again",
	ReasonShimSilent:        "its shim (containerd-shim-runc-v2) does not answer; this is what was seen last, and what runs goes on; it is ended by force when the sandbox is to stop",
	ReasonUnseen:            "the container runtime cannot be asked; this is what was seen last",
	ReasonWaitingForCluster: "the node was started anew; waiting until the cluster names this sandbox again",
	ReasonInitializing:      "an init container has not ended yet; the others start after it",
	ReasonWaitingForDisk:    "waiting for the disks that it mounts to be granted",
	ReasonWaitingForSecrets: "asking for the secrets that it refers to",
	ReasonSecretMissing:     "waiting for secrets",
	ReasonSecretsAway:       "the coordinator cannot be asked for secrets",
}

// told is what a status tells beside its reason: a sentence for people, and the reason of the
// fault behind it. The cause is empty where the sentence is about no fault.
type told struct{ message, cause string }

// faultTold tells of a fault.
func faultTold(err error) told {
	cause := fault.Reason(err)
	if len(cause) > maxReason {
		cause = "" // a word that is cut off is another one
	}
	return told{clip(err.Error()), cause}
}

// toldBy is what a status tells now.
func toldBy(s *resourcev1.SandboxStatus) told { return told{s.GetMessage(), s.GetCauseReason()} }

// tell has a status tell it.
func tell(s *resourcev1.SandboxStatus, t told) { s.Message, s.CauseReason = t.message, t.cause }

// describeExit is one sentence about how a container ended.
func describeExit(e *resourcev1.ContainerExit) string { return describeEnd(e) + describeKills(e) }

func describeEnd(e *resourcev1.ContainerExit) string {
	switch {
	case e.GetUnknown():
		return fmt.Sprintf("container %s ended, nobody can tell how", e.GetContainer())
	case e.GetOomKilled():
		return fmt.Sprintf("container %s was ended for using more memory than its limit", e.GetContainer())
	case e.GetSignal() != 0:
		return fmt.Sprintf("container %s was ended by signal %d", e.GetContainer(), e.GetSignal())
	}
	return fmt.Sprintf("container %s ended with code %d", e.GetContainer(), e.GetCode())
}

// describeExits is one sentence about the exits of the current attempt.
func describeExits(status *resourcev1.SandboxStatus) string {
	var parts []string
	for _, c := range status.GetContainers() {
		if c.GetExit() != nil {
			parts = append(parts, describeExit(c.GetExit()))
		}
	}
	return strings.Join(parts, "; ")
}

// clip keeps text from below within what a status may carry.
func clip(s string) string {
	const most = 4096
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len("…")], "") + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// phaseName is the name of a phase in log lines.
func phaseName(p resourcev1.SandboxPhase) string {
	return strings.TrimPrefix(p.String(), "SANDBOX_PHASE_")
}
