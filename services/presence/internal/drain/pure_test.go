package drain

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	all     = presencev1.DrainScope_DRAIN_SCOPE_ALL
	cluster = presencev1.DrainScope_DRAIN_SCOPE_CLUSTER
	boot    = "boot-1"
)

var start = moment{Wall: time.Unix(1e9, 0), Boot: time.Hour}

func later(d time.Duration) moment { return moment{Wall: start.Wall.Add(d), Boot: start.Boot + d} }

func within(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func TestJoin(t *testing.T) {
	first := &presencev1.DrainRequest{Scope: cluster, KillAfter: within(time.Minute), Reason: "disks"}
	base := join(nil, first, boot, start)
	for _, c := range []struct {
		name     string
		req      *presencev1.DrainRequest
		after    time.Duration
		scope    presencev1.DrainScope
		deadline time.Duration // since start
		reason   string
	}{
		{"the same at once", first, 0, cluster, time.Minute, "disks"},
		{"the same later leaves the earlier deadline", first, 30 * time.Second, cluster, time.Minute, "disks"},
		{"a wider scope counts", &presencev1.DrainRequest{Scope: all}, time.Second, all, time.Minute, "disks"},
		{"no scope is all", &presencev1.DrainRequest{}, time.Second, all, time.Minute, "disks"},
		{"an earlier deadline counts", &presencev1.DrainRequest{Scope: cluster, KillAfter: within(0)}, time.Second, cluster, time.Second, "disks"},
		{"a newer reason counts", &presencev1.DrainRequest{Scope: cluster, Reason: "fire"}, time.Second, cluster, time.Minute, "fire"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := proto.CloneOf(base)
			got := join(base, c.req, boot, later(c.after))
			if !proto.Equal(base, before) {
				t.Error("what was kept was changed in place")
			}
			d := got.GetDrain()
			if d.GetScope() != c.scope || d.GetDeadlineBoottime().AsDuration() != start.Boot+c.deadline || got.GetCordonReason() != c.reason {
				t.Errorf("got %v, want scope %v, deadline after %v, reason %q", got, c.scope, c.deadline, c.reason)
			}
			if !d.GetDeadlineAt().AsTime().Equal(start.Wall.Add(c.deadline)) {
				t.Errorf("shown deadline %v, want %v after the start", d.GetDeadlineAt().AsTime(), c.deadline)
			}
			if !got.GetCordoned() || !got.GetCordonedAt().AsTime().Equal(start.Wall) || !d.GetBeganAt().AsTime().Equal(start.Wall) {
				t.Errorf("got %v, want cordoned and begun at the first call", got)
			}
			if again := join(got, c.req, boot, later(c.after+time.Hour)); !proto.Equal(again, got) {
				t.Errorf("the same call again made %v of %v", again, got)
			}
		})
	}
}

func TestJoin_ShutdownNeverCordons(t *testing.T) {
	got := join(nil, &presencev1.DrainRequest{Shutdown: true, Reason: "power"}, boot, start)
	if got.GetCordoned() || got.GetDrain() != nil || got.GetShutdown().GetScope() != all {
		t.Errorf("got %v, want a shutdown alone", got)
	}
	if h := wanted(got); len(h) != 1 || h[0].GetPurpose() != forShutdown || !h[0].GetUntilReboot() || h[0].GetBootId() != boot {
		t.Errorf("got holds %v, want one until the reboot", h)
	}
	if again := reborn(got, "boot-2"); again.GetShutdown() != nil {
		t.Errorf("after a reboot it is %v, want none", again)
	}
	if same := reborn(got, boot); !proto.Equal(same, got) {
		t.Errorf("in the same boot it is %v, want %v", same, got)
	}
}

func TestReborn_DrainStaysWithoutDeadline(t *testing.T) {
	if reborn(nil, boot) != nil {
		t.Error("nobody knows, and now somebody does")
	}
	r := join(nil, &presencev1.DrainRequest{KillAfter: within(time.Minute)}, boot, start)
	got := reborn(r, "boot-2")
	if d := got.GetDrain(); d == nil || d.GetDeadlineBoottime() != nil || d.GetDeadlineAt() != nil || d.GetBootId() != "boot-2" || !got.GetCordoned() {
		t.Errorf("after a reboot it is %v, want drain and cordon without a deadline", got)
	}
}

func TestFound(t *testing.T) {
	if found(nil, boot, start) != nil {
		t.Error("no hold says that nobody asked, and that is not known")
	}
	r := join(nil, &presencev1.DrainRequest{Scope: cluster, KillAfter: within(time.Minute)}, boot, start)
	r = join(r, &presencev1.DrainRequest{Shutdown: true}, boot, start)
	holds := wanted(r)
	for _, h := range holds {
		h.HeldAt = timestamppb.New(start.Wall)
	}
	got := found(holds, boot, later(time.Second))
	if !proto.Equal(got, r) {
		t.Errorf("got %v, want what was lost: %v", got, r)
	}
}

func TestDifference(t *testing.T) {
	drained := join(nil, &presencev1.DrainRequest{}, boot, start)
	sooner := join(drained, &presencev1.DrainRequest{KillAfter: within(0)}, boot, start)
	placed := wanted(drained)
	placed[0].HeldAt = timestamppb.New(start.Wall)
	strange := []*sandboxhostv1.Hold{{Purpose: 77}}
	for _, c := range []struct {
		name         string
		want         []*sandboxhostv1.Hold
		have         []*sandboxhostv1.Hold
		ensure, lift int
	}{
		{"nothing", nil, nil, 0, 0},
		{"to be placed", wanted(drained), nil, 1, 0},
		{"stands", wanted(drained), placed, 0, 0},
		{"stands with another deadline", wanted(sooner), placed, 1, 0},
		{"to be lifted", nil, placed, 0, 1},
		{"of a release that we do not know", nil, strange, 0, 0},
	} {
		ensure, lift := difference(c.want, c.have)
		if len(ensure) != c.ensure || len(lift) != c.lift {
			t.Errorf("%s: ensure %v, lift %v, want %d and %d", c.name, ensure, lift, c.ensure, c.lift)
		}
	}
}

// box is a sandbox as sandboxhost shows it.
func box(name, manager string, phase resourcev1.SandboxPhase, held, dead bool) *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Uid: "uid-" + name, Name: name, Manager: manager, Held: held, Dead: dead,
		Status: &resourcev1.SandboxStatus{Phase: phase},
	}
}

func TestAssess(t *testing.T) {
	const (
		running  = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
		stopping = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING
		stopped  = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	)
	record := join(nil, &presencev1.DrainRequest{Scope: cluster}, boot, start)
	for _, c := range []struct {
		name   string
		change func(p *picture)
		step   presencev1.DrainStep
		dead   uint32
		of     uint32
		says   string
	}{
		{"nothing is there", func(*picture) {}, presencev1.DrainStep_DRAIN_STEP_DONE, 0, 0, ""},
		{"the cluster is not told yet", func(p *picture) { p.told = false }, presencev1.DrainStep_DRAIN_STEP_CORDONING, 0, 0, "cluster"},
		{"nobody can be asked", func(p *picture) { p.away = "gone fishing" }, presencev1.DrainStep_DRAIN_STEP_HOLDING, 0, 0, "gone fishing"},
		{"no hold stands", func(p *picture) { p.holds = nil }, presencev1.DrainStep_DRAIN_STEP_HOLDING, 0, 0, "stopped"},
		{"another hold stands", func(p *picture) { p.holds[0].Scope = sandboxhostv1.HoldScope_HOLD_SCOPE_ALL }, presencev1.DrainStep_DRAIN_STEP_HOLDING, 0, 0, "stopped"},
		{"sandboxes are not listed", func(p *picture) { p.synced.sandboxes = false }, presencev1.DrainStep_DRAIN_STEP_HOLDING, 0, 0, "list"},
		{"grants are not listed", func(p *picture) { p.synced.grants = false }, presencev1.DrainStep_DRAIN_STEP_HOLDING, 0, 0, "list"},
		{"one is asked to stop", func(p *picture) {
			put(p, box("a", "cluster", stopping, true, false), box("b", "cluster", stopped, true, true))
		}, presencev1.DrainStep_DRAIN_STEP_STOPPING, 1, 2, "a"},
		{"one that is dead may be about to run", func(p *picture) {
			put(p, box("a", "cluster", stopped, false, true))
		}, presencev1.DrainStep_DRAIN_STEP_STOPPING, 0, 1, "a"},
		{"one that is torn down", func(p *picture) {
			b := box("a", "cluster", stopped, false, true)
			b.Status.TornDownAt = timestamppb.New(start.Wall)
			put(p, b)
		}, presencev1.DrainStep_DRAIN_STEP_DONE, 1, 1, ""},
		{"another manager's is out of scope", func(p *picture) { put(p, box("a", "local", running, false, false)) },
			presencev1.DrainStep_DRAIN_STEP_DONE, 0, 0, ""},
		{"a disk is mounted", func(p *picture) {
			put(p, box("a", "cluster", stopped, true, true))
			p.grants["d"] = &sandboxhostv1.Grant{Disk: "data", State: sandboxhostv1.GrantState_GRANT_STATE_IDLE}
			p.grants["e"] = &sandboxhostv1.Grant{Disk: "other", State: sandboxhostv1.GrantState_GRANT_STATE_PARKED}
		}, presencev1.DrainStep_DRAIN_STEP_UNMOUNTING, 1, 1, "data"},
		{"all disks are unmounted", func(p *picture) {
			put(p, box("a", "cluster", stopped, true, true))
			p.grants["d"] = &sandboxhostv1.Grant{Disk: "data", State: sandboxhostv1.GrantState_GRANT_STATE_PARKED}
		}, presencev1.DrainStep_DRAIN_STEP_DONE, 1, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &picture{
				told: true, holds: wanted(record), sandboxes: map[string]*sandboxhostv1.SandboxState{},
				grants: map[string]*sandboxhostv1.Grant{},
			}
			p.synced.sandboxes, p.synced.grants = true, true
			c.change(p)
			got := assess(forDrain, record.GetDrain(), p)
			if got.GetStep() != c.step || got.GetDead() != c.dead || got.GetSandboxes() != c.of || !strings.Contains(got.GetWaitingFor(), c.says) {
				t.Errorf("got %v, want %v with %d of %d dead, waiting for %q", got, c.step, c.dead, c.of, c.says)
			}
			if (got.GetWaitingFor() == "") != (c.step == presencev1.DrainStep_DRAIN_STEP_DONE) {
				t.Errorf("step %v waits for %q", got.GetStep(), got.GetWaitingFor())
			}
			if len(got.GetWaiting()) != int(c.of-c.dead) {
				t.Errorf("lists %v, want those that are not dead", got.GetWaiting())
			}
		})
	}
}

func put(p *picture, boxes ...*sandboxhostv1.SandboxState) {
	for _, b := range boxes {
		p.sandboxes[b.GetUid()] = b
	}
}
