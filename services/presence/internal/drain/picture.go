package drain

import (
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// picture is what is known of sandboxhost.
type picture struct {
	told      bool                                   // the cluster was, that the node is cordoned, or it was waited for
	away      string                                 // why sandboxhost cannot be asked; empty if it can
	holds     []*sandboxhostv1.Hold                  // that stand, as it said last
	sandboxes map[string]*sandboxhostv1.SandboxState // by uid; complete once synced
	grants    map[string]*sandboxhostv1.Grant        // by uid of the disk; complete once synced
	synced    struct{ sandboxes, grants bool }       // since the holds stand
	troubles  map[string]*presencev1.DrainSandbox    // by uid of the sandbox
}

func newPicture() picture {
	return picture{away: "sandboxhost was not asked yet", troubles: map[string]*presencev1.DrainSandbox{}}
}

// confirm takes note of the holds that stand now. What was listed before counts no
// more: a sandbox that is missing there may have been started since.
func (p *picture) confirm(holds []*sandboxhostv1.Hold) {
	p.away, p.holds = "", holds
	p.sandboxes, p.grants = map[string]*sandboxhostv1.SandboxState{}, map[string]*sandboxhostv1.Grant{}
	p.synced.sandboxes, p.synced.grants = false, false
}

// sandbox takes one message about sandboxes.
func (p *picture) sandbox(msg *sandboxhostv1.WatchSandboxesResponse) {
	switch e := msg.GetEvent().(type) {
	case *sandboxhostv1.WatchSandboxesResponse_Changed:
		p.sandboxes[e.Changed.GetUid()] = e.Changed
		_, known := p.troubles[e.Changed.GetUid()]
		if e.Changed.GetTrouble() != "" && (known || len(p.troubles) < maxListed) {
			p.troubles[e.Changed.GetUid()] = entry(e.Changed)
		}
	case *sandboxhostv1.WatchSandboxesResponse_Forgotten:
		delete(p.sandboxes, e.Forgotten.GetUid())
	case *sandboxhostv1.WatchSandboxesResponse_Synced:
		p.synced.sandboxes = true
	}
}

// grant takes one message about grants.
func (p *picture) grant(msg *sandboxhostv1.WatchGrantsResponse) {
	switch e := msg.GetEvent().(type) {
	case *sandboxhostv1.WatchGrantsResponse_Changed:
		p.grants[e.Changed.GetDiskUid()] = e.Changed
	case *sandboxhostv1.WatchGrantsResponse_Forgotten:
		delete(p.grants, e.Forgotten.GetDiskUid())
	case *sandboxhostv1.WatchGrantsResponse_Synced:
		p.synced.grants = true
	}
}
