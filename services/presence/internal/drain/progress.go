package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// maxListed bounds the sandboxes that a progress names.
const maxListed = 100

// assess says how far a drain is, from nothing but facts: the hold stands, everything
// that is there was listed since, and what is called dead said so itself under the hold.
func assess(purpose sandboxhostv1.HoldPurpose, d *presencev1.DrainRecord, p *picture) *presencev1.DrainProgress {
	out := &presencev1.DrainProgress{
		Scope: d.GetScope(), BeganAt: d.GetBeganAt(), DeadlineAt: d.GetDeadlineAt(), Troubles: troubled(p),
	}
	alive, all := living(d, p)
	out.Sandboxes, out.Dead = uint32(all), uint32(all-len(alive))
	out.Disks = uint32(len(mounted(p)))
	out.Waiting = listed(alive)
	switch {
	case purpose == forDrain && !p.told:
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_CORDONING, "the cluster to be told that the node is cordoned"
	case p.away != "":
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_HOLDING, p.away
	case !stands(holdOf(purpose, d), p.holds):
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_HOLDING, "sandboxhost to keep the sandboxes stopped"
	case !p.synced.sandboxes || !p.synced.grants:
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_HOLDING, "sandboxhost to list what is there"
	case len(alive) > 0:
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_STOPPING, "sandboxes to end: "+names(alive)
	case out.GetDisks() > 0:
		out.Step, out.WaitingFor = presencev1.DrainStep_DRAIN_STEP_UNMOUNTING, "storage-agent to unmount disks: "+few(mounted(p))
	default:
		out.Step = presencev1.DrainStep_DRAIN_STEP_DONE
	}
	return out
}

// living lists the sandboxes in scope that are not dead, by name, and counts all.
func living(d *presencev1.DrainRecord, p *picture) (alive []*sandboxhostv1.SandboxState, all int) {
	for _, s := range p.sandboxes {
		if d.GetScope() == presencev1.DrainScope_DRAIN_SCOPE_CLUSTER && s.GetManager() != managerCluster {
			continue
		}
		all++
		if !dead(s) {
			alive = append(alive, s)
		}
	}
	slices.SortFunc(alive, func(a, b *sandboxhostv1.SandboxState) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetUid(), b.GetUid()))
	})
	return alive, all
}

// managerCluster is the manager of sandboxes that the cluster placed here.
const managerCluster = "cluster"

// dead says whether a sandbox is, and stays so: what is dead without being held may
// be about to run.
func dead(s *sandboxhostv1.SandboxState) bool {
	return s.GetStatus().GetTornDownAt() != nil || s.GetHeld() && s.GetDead()
}

func listed(alive []*sandboxhostv1.SandboxState) []*presencev1.DrainSandbox {
	var out []*presencev1.DrainSandbox
	for _, s := range alive[:min(len(alive), maxListed)] {
		out = append(out, entry(s))
	}
	return out
}

// entry is a sandbox as a progress shows it.
func entry(s *sandboxhostv1.SandboxState) *presencev1.DrainSandbox {
	return &presencev1.DrainSandbox{
		Uid: s.GetUid(), Name: s.GetName(), Manager: s.GetManager(), Phase: s.GetStatus().GetPhase(),
		Message: cmp.Or(s.GetTrouble(), s.GetStatus().GetMessage()),
	}
}

// troubled lists what could not be done, by name.
func troubled(p *picture) []*presencev1.DrainSandbox {
	return slices.SortedFunc(maps.Values(p.troubles), func(a, b *presencev1.DrainSandbox) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetUid(), b.GetUid()))
	})
}

// names are the first few names, and how many there are beside them.
func names(alive []*sandboxhostv1.SandboxState) string {
	var all []string
	for _, s := range alive {
		all = append(all, s.GetName())
	}
	return few(all)
}

// mounted names the disks that are not unmounted for a fact. Only sandboxes of the
// cluster have any, and every scope has those.
func mounted(p *picture) []string {
	var all []string
	for _, g := range p.grants {
		if g.GetState() != sandboxhostv1.GrantState_GRANT_STATE_PARKED {
			all = append(all, g.GetDisk())
		}
	}
	slices.Sort(all)
	return all
}

func few(all []string) string {
	const most = 5
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}
