package command

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
)

// phaseOf is the word for a sandbox's place in its life.
func phaseOf(s *sandbox.Sandbox) string {
	switch {
	case s.Status.GetTornDownAt() != nil:
		return "REMOVED"
	case s.Removing:
		return "REMOVING"
	case s.Status.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_UNSPECIFIED:
		return "PENDING"
	}
	return strings.TrimPrefix(s.Status.GetPhase().String(), "SANDBOX_PHASE_")
}

// exitOf is the end of the first container that has one, of the newest attempt. An
// init container that ended well has done its work, which says nothing.
func exitOf(s *sandbox.Sandbox) string {
	for _, c := range s.Spec.GetContainers() {
		e := s.Exit(c.GetName())
		if e == nil || c.GetInit() && e.GetCode() == 0 && !e.GetUnknown() {
			continue
		}
		return codeOf(e)
	}
	return ""
}

// codeOf is the code that a container ended with, or what is known instead.
func codeOf(e *resourcev1.ContainerExit) string {
	switch {
	case e.GetUnknown():
		return "unknown"
	case e.GetOomKilled():
		return fmt.Sprintf("%d (out of memory)", e.GetCode())
	}
	return fmt.Sprint(e.GetCode())
}

// readyOf is whether a sandbox can do its work, as a word; empty if nobody says.
func readyOf(s *sandbox.Sandbox) string {
	state, _ := s.Ready()
	return strings.ToLower(enumWord(state.String(), "CONDITION_STATE_"))
}

func imagesOf(s *sandbox.Sandbox) string {
	images := make([]string, len(s.Spec.GetContainers()))
	for i, c := range s.Spec.GetContainers() {
		images[i] = c.GetImage()
	}
	return strings.Join(images, ",")
}

var sandboxColumns = []string{"NAME", "UID", "NODE", "MANAGER", "PHASE", "READY", "ATTEMPT", "EXIT", "ADDRESS", "PORTS", "AGE", "IMAGE", "MESSAGE"}

func sandboxRow(now time.Time, s *sandbox.Sandbox) output.Row {
	attempt := ""
	if n := s.Status.GetAttempt(); n > 0 {
		attempt = fmt.Sprint(n)
	}
	return output.Row{
		ID: s.UID, Message: s.Record,
		Cells: []string{
			s.Name, s.UID, s.Node, s.Manager, phaseOf(s), readyOf(s), attempt, exitOf(s), strings.Join(s.Status.GetAddresses(), ","), portsOf(s.Spec),
			output.Age(now, timestamppb.New(s.CreatedAt)), imagesOf(s), s.Why(),
		},
	}
}

func sandboxRows(list []sandbox.Sandbox) []output.Row {
	now := time.Now()
	rows := make([]output.Row, len(list))
	for i := range list {
		rows[i] = sandboxRow(now, &list[i])
	}
	return rows
}

// columnsOf names the columns of a kind.
func columnsOf(k resourcev1.Kind) []string {
	switch k {
	case resourcev1.Kind_KIND_NODE:
		return []string{"NAME", "UID", "READY", "SESSION", "CORDONED", "ADDRESSES", "VERSION", "AGE", "REASON"}
	case resourcev1.Kind_KIND_DISK:
		return []string{"NAME", "UID", "PHASE", "NODE", "HOLDER", "AGE", "MESSAGE"}
	case resourcev1.Kind_KIND_SERVICE:
		return []string{"NAME", "UID", "ADDRESS", "PORTS", "SELECTOR", "AFFINITY", "AGE"}
	case resourcev1.Kind_KIND_DISK_LEASE:
		return []string{"NAME", "UID", "PHASE", "DISK", "SANDBOX", "NODE", "MESSAGE"}
	default:
		return sandboxColumns
	}
}

// recordRow is one record as a line of its kind's table.
func recordRow(now time.Time, r *resourcev1.Resource) output.Row {
	meta := r.GetMeta()
	row := output.Row{ID: meta.GetUid(), Message: r}
	switch meta.GetKind() {
	case resourcev1.Kind_KIND_NODE:
		row.Cells = nodeCells(now, r)
	case resourcev1.Kind_KIND_DISK:
		d := r.GetDisk()
		row.Cells = []string{
			meta.GetName(), meta.GetUid(), removing(meta, enumWord(d.GetStatus().GetPhase().String(), "DISK_PHASE_")),
			firstOf(d.GetPlacement().GetNode(), d.GetSpec().GetNode()), d.GetPlacement().GetHolder(),
			output.Age(now, meta.GetCreatedAt()), d.GetStatus().GetMessage(),
		}
	case resourcev1.Kind_KIND_SERVICE:
		spec := r.GetService().GetSpec()
		row.Cells = []string{
			meta.GetName(), meta.GetUid(), addressText(spec, r.GetService().GetPlacement().GetAddress()), portsText(spec), labelsText(spec.GetSelector()),
			affinityText(spec), output.Age(now, meta.GetCreatedAt()),
		}
	case resourcev1.Kind_KIND_DISK_LEASE:
		l := r.GetDiskLease()
		row.Cells = []string{
			meta.GetName(), meta.GetUid(), removing(meta, enumWord(l.GetStatus().GetPhase().String(), "DISK_LEASE_PHASE_")),
			l.GetSpec().GetDisk(), l.GetSpec().GetSandboxUid(), l.GetSpec().GetNode(), l.GetStatus().GetMessage(),
		}
	default:
		s := sandbox.FromRecord(r)
		return sandboxRow(now, &s)
	}
	return row
}

func nodeCells(now time.Time, r *resourcev1.Resource) []string {
	meta, n := r.GetMeta(), r.GetNode()
	ready, reason := "unknown", ""
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			ready, reason = strings.ToLower(enumWord(c.GetState().String(), "CONDITION_STATE_")), c.GetReason()
		}
	}
	if n.GetPlacement().GetSessionId() == 0 { // what it said last is not so any more
		ready, reason = "false", "it has no session"
	} else if s := n.GetPlacement().GetStatusSeq(); s > 0 && n.GetStatus().GetSeq() <= s {
		ready, reason = "unknown", "it has not said so since its session began"
	}
	session := "none"
	switch p := n.GetPlacement(); {
	case p.GetSessionId() != 0:
		session = "connected"
	case p.GetLostSince() != nil:
		session = "lost " + output.Age(now, p.GetLostSince()) + " ago"
	case p.GetLeftAt() != nil:
		session = "left " + output.Age(now, p.GetLeftAt()) + " ago"
	}
	return []string{
		meta.GetName(), meta.GetUid(), ready, session, fmt.Sprint(n.GetSpec().GetCordoned() || n.GetStatus().GetCordoned()),
		strings.Join(n.GetStatus().GetAddresses(), ","), n.GetStatus().GetVersion(), output.Age(now, meta.GetCreatedAt()), firstOf(reason, outOfUse(n.GetStatus())),
	}
}

// outOfUse says what was done on the node itself to keep work away from it.
func outOfUse(s *resourcev1.NodeStatus) string {
	var parts []string
	if s.GetCordoned() {
		parts = append(parts, strings.TrimSuffix("cordoned on the node: "+s.GetCordonReason(), ": "))
	}
	if s.GetHolding() {
		parts = append(parts, "it keeps sandboxes stopped")
	}
	for _, c := range s.GetConditions() {
		if isPressure(c) && c.GetState() == resourcev1.ConditionState_CONDITION_STATE_TRUE {
			parts = append(parts, c.GetType()+": "+c.GetReason())
		}
	}
	return strings.Join(parts, "; ")
}

// isPressure says that a condition is well when it is false.
func isPressure(c *resourcev1.Condition) bool { return strings.HasSuffix(c.GetType(), "Pressure") }

// enumWord is the part of an enum value that tells it from the others; the zero
// value is empty.
func enumWord(value, prefix string) string {
	word := strings.TrimPrefix(value, prefix)
	if word == "UNSPECIFIED" {
		return ""
	}
	return word
}

func removing(meta *resourcev1.Metadata, phase string) string {
	if meta.GetDeletingAt() != nil {
		return "REMOVING"
	}
	return phase
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
