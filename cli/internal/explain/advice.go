package explain

import (
	"cmp"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// advice is what a sandbox waits for and what a person can do. NAME, NODE, CONTAINER and
// WHEN stand for those of the sandbox.
type advice struct{ waits, next string }

// Reasons of our own, beside those of a status.
const (
	nodeLost = "NODE_LOST"
	nodeLeft = "NODE_LEFT"
)

// byReason is what to say for each reason that a status can have.
var byReason = map[string]advice{
	"UNREADABLE_CONTAINER": {"", "install the release that made it on the node, or remove the sandbox: staddle rm NAME"},
	"REMOVED":              {"its containers to end and what it had to be released", "look again; if it stays, sudo staddle doctor on the node"},
	"STOPPED_AS_ASKED":     {"", "staddle start NAME"},
	"DISCONNECTED":         {"a session of its node at the coordinator", "on the node: staddle status"},
	"HELD":                 {"the node to be given back", "staddle node uncordon NODE"},
	"SPEC_REPLACED":        {"the containers of the old spec to end", ""},
	"NODE_REBOOTED":        {"its next attempt", ""},
	"NODE_TAKEN_DOWN":      {"the node to be started again", "on the node: staddle up"},
	"CONTAINER_EXITED":     {"its next attempt, if its restart policy asks for one", "staddle logs NAME --container CONTAINER --previous"},
	"UNHEALTHY":            {"its next attempt, if its restart policy asks for one", "see whether the probe asks for the right thing, and staddle logs NAME --container CONTAINER"},
	"STEP_FAILED":          {"a spec that can be started, or its next attempt", "change what the cause names, then staddle apply -f FILE; all that is known: staddle describe NAME"},
	"NAMESPACES_LOST":      {"its next attempt", "see who removed them: sudo staddle doctor on the node"},
	"NAMESPACES_UNPINNED":  {"", "staddle stop NAME, then staddle start NAME"},
	"SHIM_SILENT":          {"its shim to answer", "on the node: see whether containerd-shim-runc-v2 is stopped or its disk hangs; staddle stop NAME ends it by force"},
	"BACK_OFF":             {"the end of its back-off at WHEN", "staddle logs NAME --container CONTAINER --previous"},
	"RETRYING":             {"what the cause names; it is tried again by itself", "mend what the cause names; nothing has to be started anew"},
	"RUNTIME_UNAVAILABLE":  {"containerd to answer", "on the node: staddle status"},
	"WAITING_FOR_CLUSTER":  {"the coordinator to name it again after the restart of its node", "on the node: staddle status"},
	"INITIALIZING":         {"its init containers to end", "staddle logs NAME --container INIT -f"},
	"WAITING_FOR_DISK":     {"the disks that it mounts", "staddle get disk; staddle get disklease"},
	"WAITING_FOR_SECRETS":  {"the coordinator to answer for its secrets", ""},
	"SECRET_NOT_FOUND":     {"the secret that the cause names", "staddle secret set SECRET KEY=VALUE, or another key in the spec"},
	"SECRETS_UNAVAILABLE":  {"the coordinator", "on the node: staddle status"},
	nodeLost:               {"its node to come back", "staddle node status NODE; see whether the machine is up and reaches the coordinator"},
	nodeLeft:               {"its node to come back", "on the node: staddle up"},
}

// advice is the one for the outermost cause that counts.
func (f Facts) advice() advice {
	s := f.Sandbox
	if causes := f.nodeCauses(); f.away() {
		return byReason[causes[0].Reason]
	}
	if s.Removing {
		return byReason["REMOVED"]
	}
	if a, known := byReason[s.Status.GetReason()]; known {
		a.next = cmp.Or(nextOf(s.Status.GetCauseReason()), a.next)
		return a
	}
	switch phase := s.Status.GetPhase(); {
	case phase == none && s.Node == "":
		return advice{"a node that may take it", "staddle get node; staddle describe NAME"}
	case phase == none:
		return advice{"its node to begin", "staddle node status NODE"}
	case s.Status.GetObservedGeneration() < s.Generation:
		return advice{"its node to take the newest spec", "staddle node status NODE"}
	case phase == running && f.Trouble == "":
		return advice{"its probes and ports to say yes", "staddle logs NAME --container CONTAINER"}
	case phase == resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING:
		return advice{"images, disks, namespaces and addresses to be made ready", "look again; all that is known: staddle describe NAME"}
	case phase == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING:
		return advice{"its containers to end, by force when their grace is over", ""}
	case phase == stopped || phase == failed:
		return byReason["CONTAINER_EXITED"]
	case f.Trouble != "":
		return byReason["RETRYING"]
	}
	return advice{"its turn", "look again; all that is known: staddle describe NAME"}
}
