// Package schedule owns where sandboxes go: once per sandbox, and never again.
//
// Choose is the whole decision, as one pure function over a sandbox and the
// nodes; the loop around it reads the mirror and writes what was decided as a
// compare-and-set, together with the disks that the sandbox gets. It must never
// move a sandbox, never take a disk from its holder, and never act on the
// passing of time. In the trail it is one sentence between api and the node: the
// record gets its placement.
package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/record"
)

// Candidate is one node with what lies on it.
type Candidate struct {
	Record *record.Resource
	Load   Load
}

// Load is what sandboxes claim.
type Load struct {
	MemoryBytes int64
	Sandboxes   int64
}

// Plus returns both together.
func (l Load) Plus(m Load) Load {
	return Load{plus(l.MemoryBytes, m.MemoryBytes), plus(l.Sandboxes, m.Sandboxes)}
}

// plus adds up to the largest number there is: a sum of large limits must not come
// out as nothing.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Claim is what one sandbox claims: the memory limits of its containers. A
// container without limit claims nothing.
func Claim(spec *resourcev1.SandboxSpec) Load {
	l := Load{Sandboxes: 1}
	for _, c := range spec.GetContainers() {
		l.MemoryBytes = plus(l.MemoryBytes, c.GetLimits().GetMemoryLimitBytes())
	}
	return l
}

// Choose returns the node for a sandbox: of those that qualify the one with the
// fewest sandboxes for its size, then the first by name. pin is the node that its
// disks are on, empty for none. Without a node the reason says, in one sentence,
// how many nodes failed on what.
func Choose(spec *resourcev1.SandboxSpec, pin string, nodes []Candidate) (chosen *record.Resource, reason string) {
	refused := map[string]int{}
	var best *Candidate
	for i := range nodes {
		n := &nodes[i]
		if why := unfit(spec, pin, *n); why != "" {
			refused[why]++
			continue
		}
		if best == nil || better(*n, *best) {
			best = n
		}
	}
	if best != nil {
		return best.Record, ""
	}
	return nil, refusals(len(nodes), pin, refused)
}

// unfit says why a node cannot take a sandbox, "" if it can.
func unfit(spec *resourcev1.SandboxSpec, pin string, c Candidate) string {
	n := c.Record.GetNode()
	size, total := n.GetStatus().GetCapacity(), c.Load.Plus(Claim(spec))
	switch {
	case pin != "" && c.Record.GetMeta().GetName() != pin:
		return "without its disks"
	case record.Deleting(c.Record):
		return "being removed"
	case n.GetPlacement().GetSessionId() == 0:
		return "not connected"
	case n.GetSpec().GetCordoned() || n.GetStatus().GetCordoned(): // by the operator, or on the node itself
		return "cordoned"
	case n.GetStatus().GetHolding(): // uncordoned a moment ago: what is placed now would have to be begun twice
		return "keeping sandboxes stopped"
	case !record.Ready(n) || n.GetPlacement().GetRegisteredAt() == nil:
		return "not ready"
	case record.Pressure(n) != "": // it would refuse
		return "under " + record.Pressure(n)
	case !selects(spec.GetNodeSelector(), c.Record.GetMeta().GetLabels()):
		return "without the wanted labels"
	case total.Sandboxes > size.GetSandboxes():
		return "full"
	case total.MemoryBytes > size.GetMemoryBytes():
		return "without enough memory"
	}
	return ""
}

func selects(want, labels map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// better compares by the share of sandboxes, without division, then by name.
func better(a, b Candidate) bool {
	sizeA, sizeB := a.Record.GetNode().GetStatus().GetCapacity().GetSandboxes(), b.Record.GetNode().GetStatus().GetCapacity().GetSandboxes()
	if c := cmp.Compare(a.Load.Sandboxes*sizeB, b.Load.Sandboxes*sizeA); c != 0 {
		return c < 0
	}
	return a.Record.GetMeta().GetName() < b.Record.GetMeta().GetName()
}

// refusals is stable for the same situation: it is written to the record only
// when it changes.
func refusals(all int, pin string, refused map[string]int) string {
	if all == 0 {
		return "there is no node"
	}
	if pin != "" && refused["without its disks"] == all {
		return fmt.Sprintf("its disks are on node %s, which is not there", pin)
	}
	var parts []string
	for why, n := range refused {
		parts = append(parts, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(parts)
	return fmt.Sprintf("no node of %d takes it: %s", all, strings.Join(parts, ", "))
}
