package command_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

// fakePresence is the presence of a node; a drain goes one step per message.
type fakePresence struct {
	presencev1.UnimplementedPresenceServiceServer

	host string // where sandboxhost's socket would be

	mu     sync.Mutex // guards all below
	asked  []string
	drains []*presencev1.DrainRequest
	steps  []*presencev1.DrainProgress
	dies   int // so many drains are cut after their first message
}

func newPresence(t *testing.T) *fakePresence {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &fakePresence{host: filepath.Join(dir, "sandboxhost.sock")}
	l, err := net.Listen("unix", filepath.Join(dir, "presence.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(fault.UnaryServer), grpc.ChainStreamInterceptor(fault.StreamServer))
	presencev1.RegisterPresenceServiceServer(server, p)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return p
}

func (p *fakePresence) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, what)
}

func (p *fakePresence) Cordon(_ context.Context, r *presencev1.CordonRequest) (*presencev1.CordonResponse, error) {
	p.note("cordon " + r.GetReason())
	return &presencev1.CordonResponse{}, nil
}

func (p *fakePresence) Uncordon(context.Context, *presencev1.UncordonRequest) (*presencev1.UncordonResponse, error) {
	p.note("uncordon")
	return &presencev1.UncordonResponse{}, nil
}

func (p *fakePresence) Drain(r *presencev1.DrainRequest, stream grpc.ServerStreamingServer[presencev1.DrainResponse]) error {
	p.mu.Lock()
	p.drains = append(p.drains, r)
	dies := p.dies > 0
	p.dies--
	steps := p.steps
	p.mu.Unlock()
	var errs error
	for _, s := range steps {
		errs = errors.Join(errs, stream.Send(&presencev1.DrainResponse{Progress: s}))
		if dies {
			return fault.New(fault.Unavailable, "presence stops")
		}
	}
	if steps[len(steps)-1].GetStep() != presencev1.DrainStep_DRAIN_STEP_DONE {
		<-stream.Context().Done() // it goes on
		return stream.Context().Err()
	}
	return errs
}

func step(s presencev1.DrainStep, dead uint32, waiting string) *presencev1.DrainProgress {
	return &presencev1.DrainProgress{Step: s, Sandboxes: 3, Dead: dead, WaitingFor: waiting}
}

func TestNode_CordonAndUncordonOnTheNode(t *testing.T) {
	p := newPresence(t)
	want(t, cli(t, "--node-socket", p.host, "node", "cordon", "--reason", "new disks"), 0, "node cordoned")
	want(t, cli(t, "--node-socket", p.host, "node", "uncordon"), 0, "node uncordoned")
	want(t, cli(t, "--node-socket", p.host, "node", "cordon", "node1"), 2, "node1", "without")
	want(t, cli(t, "node", "cordon"), 2, "argument is missing")
	if len(p.asked) != 2 || p.asked[0] != "cordon new disks" || p.asked[1] != "uncordon" {
		t.Errorf("presence was asked %q", p.asked)
	}
}

func TestNode_DrainGoesOnOverARestartOfPresence(t *testing.T) {
	p := newPresence(t)
	p.dies = 1
	p.steps = []*presencev1.DrainProgress{
		step(presencev1.DrainStep_DRAIN_STEP_STOPPING, 1, "sandboxes to end: a, b"),
		{Step: presencev1.DrainStep_DRAIN_STEP_DONE, Sandboxes: 3, Dead: 3, Troubles: []*presencev1.DrainSandbox{{Name: "b", Message: "device is busy"}}},
	}
	got := cli(t, "--node-socket", p.host, "node", "drain", "--kill-after", "5m", "--scope", "cluster", "--reason", "disks")
	want(t, got, 0, "1 of 3 sandboxes are dead; waiting for sandboxes to end: a, b", "node drained: 3 sandboxes are dead", "b: device is busy")
	if len(p.drains) != 2 {
		t.Fatalf("presence was asked to drain %d times, want again after it was cut", len(p.drains))
	}
	first, second := p.drains[0], p.drains[1]
	if first.GetKillAfter().AsDuration() != 5*time.Minute || first.GetScope() != presencev1.DrainScope_DRAIN_SCOPE_CLUSTER || first.GetReason() != "disks" {
		t.Errorf("asked first for %v", first)
	}
	if second.GetKillAfter() != nil {
		t.Errorf("asked then for %v, want no later deadline", second)
	}
}

func TestNode_DrainThatIsNotDone(t *testing.T) {
	p := newPresence(t)
	p.steps = []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_STOPPING, 2, "sandboxes to end: stuck")}
	want(t, cli(t, "--node-socket", p.host, "--timeout", "300ms", "node", "drain"), 5, "not done in time", "stuck", "goes on by itself")
	want(t, cli(t, "--node-socket", p.host, "node", "drain", "--no-wait"), 0, "node draining: 2 of 3")
	want(t, cli(t, "--node-socket", p.host, "node", "drain", "--scope", "some"), 2, "all or cluster")
}

func TestNode_CordonInTheRecord(t *testing.T) {
	c := newCluster(t)
	c.change(func(revision uint64) {
		r := &resourcev1.Resource{
			Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_NODE, Name: "far", Uid: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Revision: revision, Generation: 1},
			Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{}},
		}
		c.records[keyOf(r.GetMeta())] = r
	})
	cordoned := func() bool { return c.record(resourcev1.Kind_KIND_NODE, "far").GetNode().GetSpec().GetCordoned() }
	want(t, cli(t, c.flags("node", "cordon", "far")...), 0, "node far cordoned")
	if !cordoned() {
		t.Error("the record does not say cordoned")
	}
	want(t, cli(t, c.flags("node", "uncordon", "far")...), 0, "node far uncordoned")
	if cordoned() {
		t.Error("the record says cordoned after uncordon")
	}
	c.change(func(revision uint64) {
		r := c.records["KIND_NODE/far"]
		r.GetNode().Status = &resourcev1.NodeStatus{Cordoned: true}
		r.Meta.Revision = revision
	})
	want(t, cli(t, c.flags("node", "uncordon", "far")...), 3, "not on this machine", "--node-socket")
	want(t, cli(t, c.flags("node", "drain", "far")...), 3, "not on this machine", "--node-socket")
	want(t, cli(t, c.flags("node", "cordon", "nobody")...), 3, "nobody")
}
