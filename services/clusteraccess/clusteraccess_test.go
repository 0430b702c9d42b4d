package clusteraccess

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/rpc"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestNode_WorksBeforeItIsEnrolledAndLinksOnceItIs(t *testing.T) {
	c := newCoordinator(t)
	c.Put(sandbox("a"))
	root := newRoot(t)
	n := startNode(t, root, c.address)

	n.awaitMirror(t, "reason that names the missing file", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return contains(r.GetMirror().GetReason(), filepath.Join(root, "etc/pki/ca.crt"), "no such file")
	})
	if err := c.authority.WriteNode(filepath.Join(root, "etc", "pki"), "spiffe://staddle.test/node/node1"); err != nil {
		t.Fatal(err)
	}
	got := n.awaitMirror(t, "live mirror", live)
	if len(got.GetResources()) != 1 || got.GetMirror().GetIncarnation() != "one" || got.GetMirror().GetRevision() != 1 {
		t.Errorf("mirror is %v, want the record as of revision 1 of history one", got)
	}
}

func TestNode_KeepsItsMirrorOverARestartWithoutCoordinator(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	a, b := sandbox("a"), sandbox("b")
	c.Put(a)
	n := startNode(t, root, c.address)
	n.awaitMirror(t, "live mirror", live)
	c.Put(b)
	n.awaitMirror(t, "second record", func(r *clusteraccessv1.ListResourcesResponse) bool { return len(r.GetResources()) == 2 })
	n.stop()
	c.stop()

	n = startNode(t, root, c.address)
	got := n.list(t)
	if len(got.GetResources()) != 2 || got.GetMirror().GetLive() || got.GetMirror().GetRevision() != 2 {
		t.Fatalf("mirror after a restart alone is %v, want both records, not live, as of revision 2", got)
	}
	c.Delete(a.GetMeta().GetUid())
	c.start(t)
	n.awaitMirror(t, "caught up mirror", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && len(r.GetResources()) == 1 && r.GetResources()[0].GetMeta().GetName() == "b"
	})
	if snapshots, resumes := c.Watches(); snapshots != 1 || resumes != 1 {
		t.Errorf("%d snapshots and %d resumes, want 1 and 1", snapshots, resumes)
	}
}

// ETC-3: changes made while the watch was down are seen, also after compaction.
func TestNode_SeesWhatChangedWhileItWasCutOff(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	n := startNode(t, root, c.address)
	n.awaitMirror(t, "live mirror", live)
	names := map[string]bool{}
	for round := range 4 {
		c.stop()
		n.awaitMirror(t, "loss of the link", func(r *clusteraccessv1.ListResourcesResponse) bool { return !live(r) })
		for i := range 20 {
			gone, kept := sandbox(fmt.Sprintf("gone-%d-%d", round, i)), sandbox(fmt.Sprintf("kept-%d-%d", round, i))
			c.Put(gone)
			c.Put(kept)
			c.Delete(gone.GetMeta().GetUid())
			names[kept.GetMeta().GetName()] = true
		}
		if round%2 == 1 {
			c.Compact()
		}
		c.start(t)
		n.awaitMirror(t, "all that changed", func(r *clusteraccessv1.ListResourcesResponse) bool {
			if !live(r) || len(r.GetResources()) != len(names) {
				return false
			}
			for _, r := range r.GetResources() {
				if !names[r.GetMeta().GetName()] {
					return false
				}
			}
			return true
		})
	}
}

func TestNode_TellsOfAnotherHistory(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	c.Put(sandbox("a"))
	n := startNode(t, root, c.address)
	n.awaitMirror(t, "live mirror", live)
	c.stop()
	c.Restore("two", 900, sandbox("z"))
	c.start(t)
	n.awaitMirror(t, "mirror of history two", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && r.GetMirror().GetIncarnation() == "two" && len(r.GetResources()) == 1
	})
	c.stop()
	c.Restore("two", 500, sandbox("y"))
	c.start(t)
	n.awaitMirror(t, "mirror of a lower revision", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && r.GetMirror().GetRevision() == 500 && r.GetResources()[0].GetMeta().GetName() == "y"
	})
	// The same revision, and more, of a history that was put back in between.
	c.stop()
	c.Restore("two", 600, sandbox("x"))
	c.start(t)
	n.awaitMirror(t, "mirror of a history put back and grown", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && r.GetMirror().GetTerm() == c.Term() && r.GetResources()[0].GetMeta().GetName() == "x"
	})
}

func TestNode_NeverTakesHalfASnapshot(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	for i := range 10 {
		c.Put(sandbox(fmt.Sprintf("s%d", i)))
	}
	c.BreakSnapshots(2)
	n := startNode(t, root, c.address)
	stream, err := n.client.WatchResources(t.Context(), &clusteraccessv1.WatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case msg.GetSnapshot() != nil:
			seen = 0
		case msg.GetChanged() != nil:
			seen++
		case msg.GetMirror().GetLive():
			if seen != 10 {
				t.Errorf("%d records before the mirror was live, want 10", seen)
			}
			return
		case msg.GetMirror() != nil && seen != 0:
			t.Errorf("%d records in a mirror that was never filled", seen)
		}
	}
}

// UDS-6: kinds and reasons of errors are the same behind two hops.
func TestNode_PassesKindsOn(t *testing.T) {
	c := newCoordinator(t)
	c.Put(sandbox("a"))
	n := startNode(t, enrolled(t, c), c.address)
	n.awaitMirror(t, "live mirror", live)
	get := func() error {
		_, err := n.client.GetResource(t.Context(), &clusteraccessv1.GetResourceRequest{Kind: resourcev1.Kind_KIND_SANDBOX, Uid: string(id.NewSandbox())})
		return err
	}
	if err := get(); !errors.Is(err, fault.NotFound) {
		t.Errorf("get of a missing record: %v, want not found", err)
	}
	for _, kind := range []fault.Kind{fault.Denied, fault.Conflict, fault.Exhausted, fault.Invalid, fault.Exists} {
		c.Refuse(fault.WithReason(fault.New(kind, "refused"), "SOME_REASON"))
		if err := get(); !errors.Is(err, kind) || fault.Reason(err) != "SOME_REASON" {
			t.Errorf("get refused with %v: %v, reason %q", kind, err, fault.Reason(err))
		}
	}
	c.Refuse(nil)
	c.BreakSnapshots(1 << 30)
	c.Restore("two", 900)
	c.stop()
	c.start(t)
	n.awaitMirror(t, "reachable coordinator without mirror", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return contains(r.GetMirror().GetReason(), "broken off")
	})
	if err := get(); !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.NotFound) {
		t.Errorf("get of a missing record while the mirror is not live: %v, want unavailable", err)
	}
	c.stop()
	if err := get(); !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.NotFound) {
		t.Errorf("get without coordinator: %v, want unavailable", err)
	}
	_, err := n.client.ReportStatus(t.Context(), &clusteraccessv1.ReportStatusRequest{})
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("empty report: %v, want invalid", err)
	}
}

func TestNode_ForwardsStatusWhenTheLinkIsBack(t *testing.T) {
	c := newCoordinator(t)
	a := sandbox("a")
	c.Put(a)
	n := startNode(t, enrolled(t, c), c.address)
	n.awaitMirror(t, "live mirror", live)
	c.stop()
	report := func(seq uint64) {
		t.Helper()
		a.GetSandbox().Status = &resourcev1.SandboxStatus{Seq: seq, Attempt: 1}
		if _, err := n.client.ReportStatus(t.Context(), &clusteraccessv1.ReportStatusRequest{Resources: []*resourcev1.Resource{a}}); err != nil {
			t.Fatal(err)
		}
	}
	report(3)
	report(7)
	report(5)
	c.start(t)
	n.awaitMirror(t, "status with seq 7", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && r.GetResources()[0].GetSandbox().GetStatus().GetSeq() == 7
	})
}

func TestNode_AuthorityIsTheTimeOfSendingAndOutlivesTheProcess(t *testing.T) {
	c := newCoordinator(t)
	root := enrolled(t, c)
	n := startNode(t, root, c.address)
	n.awaitMirror(t, "live mirror", live)
	renewed, err := n.client.RenewSession(t.Context(), &clusteraccessv1.RenewSessionRequest{Ttl: durationpb.New(15 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if renewed.GetSessionId() == 0 || renewed.GetNodeUid() == "" {
		t.Errorf("renewed session is %v", renewed)
	}
	before := n.authority(t)
	if before.GetRenewedAt() == nil || before.GetTtl().AsDuration() != 15*time.Second || before.GetBootId() == "" {
		t.Errorf("authority is %v", before)
	}
	n.stop()
	c.stop()
	n = startNode(t, root, c.address)
	if after := n.authority(t); after.GetRenewedAt().AsDuration() != before.GetRenewedAt().AsDuration() {
		t.Errorf("authority after a restart is %v, want %v", after, before)
	}
}

// ETC-2: a link on which packets vanish is noticed, though nobody closes it.
func TestNode_NoticesASilentCut(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCoordinator(t)
	cut := newCut(t, c.address)
	n := startNode(t, enrolled(t, c), cut.address)
	n.awaitMirror(t, "live mirror", live)
	if !n.linkServes(t) {
		t.Error("health of the link is not serving on a live mirror")
	}
	cut.drop()
	began := time.Now()
	n.awaitMirror(t, "loss of the link", func(r *clusteraccessv1.ListResourcesResponse) bool { return !live(r) })
	t.Logf("noticed after %v", time.Since(began))
	if n.linkServes(t) {
		t.Error("health of the link is serving on a cut link")
	}
	c.Put(sandbox("late"))
	cut.restore()
	n.awaitMirror(t, "caught up mirror", func(r *clusteraccessv1.ListResourcesResponse) bool {
		return live(r) && len(r.GetResources()) == 1
	})
}

func (n *node) linkServes(t *testing.T) bool {
	t.Helper()
	resp, err := healthv1.NewHealthClient(n.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: healthLink})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetStatus() == healthv1.HealthCheckResponse_SERVING
}

func (n *node) authority(t *testing.T) *clusteraccessv1.WatchAuthorityResponse {
	t.Helper()
	conn, err := rpc.Dial(config.Paths{Root: n.root}.Socket(Name), rpc.DialConfig{Process: "sandboxhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := clusteraccessv1.NewClusterAccessServiceClient(conn).WatchAuthority(t.Context(), &clusteraccessv1.WatchAuthorityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}
