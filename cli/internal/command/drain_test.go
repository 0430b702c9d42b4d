package command_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/command"
)

// fakePresence is the presence of a node; a drain goes one step per message.
type fakePresence struct {
	presencev1.UnimplementedPresenceServiceServer

	host string // where sandboxhost's socket would be
	uid  string // of the node, if it knows

	mu     sync.Mutex // guards all below
	asked  []string
	drains []*presencev1.DrainRequest
	steps  []*presencev1.DrainProgress
	dies   int  // so many drains are cut after their first message
	ended  bool // somebody uncordons the node as soon as a drain was cut
}

func newPresence(t *testing.T) *fakePresence {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &fakePresence{host: filepath.Join(dir, "sandboxhost.sock")}
	serveSocket(t, filepath.Join(dir, "presence.sock"), p)
	return p
}

func serveSocket(t *testing.T, path string, p *fakePresence) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(fault.UnaryServer), grpc.ChainStreamInterceptor(fault.StreamServer))
	presencev1.RegisterPresenceServiceServer(server, p)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
}

func (p *fakePresence) GetPresence(context.Context, *presencev1.GetPresenceRequest) (*presencev1.GetPresenceResponse, error) {
	return &presencev1.GetPresenceResponse{Presence: &presencev1.Presence{NodeUid: p.uid}}, nil
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
	p.mu.Unlock()
	return p.tell(stream.Context(), func(s *presencev1.DrainProgress) error { return stream.Send(&presencev1.DrainResponse{Progress: s}) })
}

// WatchPresence tells of the drain; first of all that it does not know yet.
func (p *fakePresence) WatchPresence(_ *presencev1.WatchPresenceRequest, stream grpc.ServerStreamingServer[presencev1.WatchPresenceResponse]) error {
	p.note("watch")
	if err := stream.Send(&presencev1.WatchPresenceResponse{Presence: &presencev1.Presence{}}); err != nil {
		return err
	}
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended {
		return stream.Send(&presencev1.WatchPresenceResponse{Presence: &presencev1.Presence{Admission: &presencev1.Admission{}}})
	}
	return p.tell(stream.Context(), func(s *presencev1.DrainProgress) error {
		return stream.Send(&presencev1.WatchPresenceResponse{Presence: &presencev1.Presence{Admission: &presencev1.Admission{Drain: s}}})
	})
}

// tell sends the steps, or dies after the first.
func (p *fakePresence) tell(ctx context.Context, send func(*presencev1.DrainProgress) error) error {
	p.mu.Lock()
	dies := p.dies > 0
	p.dies--
	steps := p.steps
	p.mu.Unlock()
	var errs error
	for _, s := range steps {
		errs = errors.Join(errs, send(s))
		if dies {
			return fault.New(fault.Unavailable, "presence stops")
		}
	}
	if steps[len(steps)-1].GetStep() != presencev1.DrainStep_DRAIN_STEP_DONE {
		<-ctx.Done() // it goes on
		return ctx.Err()
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
	if len(p.drains) != 1 || len(p.asked) != 1 || p.asked[0] != "watch" {
		t.Fatalf("presence was asked to drain %d times, and for %q; want to be asked once, and followed after the cut", len(p.drains), p.asked)
	}
	if first := p.drains[0]; first.GetKillAfter().AsDuration() != 5*time.Minute || first.GetScope() != presencev1.DrainScope_DRAIN_SCOPE_CLUSTER || first.GetReason() != "disks" {
		t.Errorf("asked for %v", first)
	}
}

// Who only waits must not drain anew what somebody else has opened meanwhile.
func TestNode_DrainThatSomebodyEndsDuringARestart(t *testing.T) {
	p := newPresence(t)
	p.dies, p.ended = 1, true
	p.steps = []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_STOPPING, 1, "sandboxes to end: a, b")}
	want(t, cli(t, "--node-socket", p.host, "node", "drain"), 4, "uncordoned meanwhile")
	if len(p.drains) != 1 {
		t.Errorf("presence was asked to drain %d times, want once", len(p.drains))
	}
}

func TestNode_DrainDeadline(t *testing.T) {
	p := newPresence(t)
	p.steps = []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_DONE, 3, "")}
	drain := func(flags ...string) result {
		return cli(t, append([]string{"--node-socket", p.host, "node", "drain"}, flags...)...)
	}
	at := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }
	for _, tt := range []struct {
		flags []string
		says  []string
	}{
		{[]string{"--deadline", at(-time.Hour)}, []string{"is over", "try: --kill-after 0s"}},
		{[]string{"--deadline", "22:30"}, []string{`deadline "22:30" is not a time: write it as 20`}},
		{[]string{"--deadline", at(time.Hour), "--kill-after", "5m"}, []string{"leave one out"}},
		{[]string{"--deadline", at(30 * 24 * time.Hour)}, []string{"7 days at most"}},
		{[]string{"--kill-after", "-1s"}, []string{"0s at least"}},
	} {
		want(t, drain(tt.flags...), 2, tt.says...)
	}
	if len(p.drains) != 0 {
		t.Fatalf("presence was asked to drain by a wrong command: %v", p.drains)
	}
	want(t, drain("--deadline", at(time.Hour)), 0, "node drained")
	if after := p.drains[0].GetKillAfter().AsDuration(); after < 59*time.Minute || after > time.Hour {
		t.Errorf("asked to kill after %v, want about an hour", after)
	}
	want(t, drain("--kill-after", "0s"), 0, "node drained")
	if after := p.drains[1].GetKillAfter(); after == nil || after.AsDuration() != 0 {
		t.Errorf("asked to kill after %v, want at once", after)
	}
}

func TestNode_DrainThatIsInterruptedSaysThatItGoesOn(t *testing.T) {
	p := newPresence(t)
	p.steps = []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_STOPPING, 2, "sandboxes to end: stuck")}
	ctx, interrupt := context.WithCancelCause(t.Context())
	var out, errOut syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- command.Run(ctx, []string{"--node-socket", p.host, "node", "drain"}, nil, &out, &errOut)
	}()
	eventually(t, "progress", func() (bool, string) { return strings.Contains(errOut.String(), "2 of 3"), errOut.String() })
	interrupt(&run.SignalError{Signal: syscall.SIGINT})
	if code := <-done; code != 130 || !strings.Contains(errOut.String(), "it goes on by itself") || !strings.Contains(errOut.String(), "staddle node uncordon ends it") {
		t.Errorf("exit code %d, says\n%s", code, errOut.String())
	}
}

func TestNode_DrainThatIsNotDone(t *testing.T) {
	p := newPresence(t)
	p.steps = []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_STOPPING, 2, "sandboxes to end: stuck")}
	want(t, cli(t, "--node-socket", p.host, "--timeout", "300ms", "node", "drain"), 5, "not done in time", "stuck", "goes on by itself")
	want(t, cli(t, "--node-socket", p.host, "node", "drain", "--no-wait"), 0, "node draining: 2 of 3")
	want(t, cli(t, "--node-socket", p.host, "node", "drain", "--scope", "some"), 2, "all or cluster")
}

// cordonedByRecord is what the record of a node says.
func (c *fakeCluster) cordonedByRecord(name string) bool {
	return c.record(resourcev1.Kind_KIND_NODE, name).GetNode().GetSpec().GetCordoned()
}

// A node of another machine is reached through its gateway, with the record at the
// coordinator beside it.
func TestNode_FromAfar(t *testing.T) {
	c := newCluster(t)
	p := &fakePresence{steps: []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_DONE, 3, "")}}
	uid := c.addNode("far", serveGateway(t, c, "far", p))
	for _, tt := range []struct {
		args     []string
		says     string
		asked    string
		cordoned bool
	}{
		{[]string{"cordon", "far", "--reason", "new disks"}, "node far cordoned\n", "cordon new disks", true},
		{[]string{"uncordon", uid}, "node far uncordoned\n", "uncordon", false},
		{[]string{"drain", "far"}, "node drained: 3 sandboxes are dead", "", true},
		{[]string{"uncordon", "far"}, "node far uncordoned\n", "uncordon", false},
		{[]string{"drain", "far", "--shutdown"}, "node drained", "", false},
	} {
		p.asked = nil
		want(t, cli(t, c.flags(append([]string{"node"}, tt.args...)...)...), 0, tt.says)
		if got := strings.Join(p.asked, ", "); got != tt.asked {
			t.Errorf("%v: the node was asked %q, want %q", tt.args, got, tt.asked)
		}
		if c.cordonedByRecord("far") != tt.cordoned {
			t.Errorf("%v: the record says cordoned: %v", tt.args, !tt.cordoned)
		}
	}
	if len(p.drains) != 2 || p.drains[0].GetShutdown() || !p.drains[1].GetShutdown() {
		t.Errorf("asked for the drains %v", p.drains)
	}
}

// Without a coordinator the gateway is named by hand, and the record is left alone.
func TestNode_FromAfarWithoutACoordinator(t *testing.T) {
	c := newCluster(t)
	p := &fakePresence{steps: []*presencev1.DrainProgress{step(presencev1.DrainStep_DRAIN_STEP_DONE, 3, "")}}
	address := serveGateway(t, c, "far", p)
	away := func(args ...string) result {
		return cli(t, append(append(c.flags(), "--coordinator", "127.0.0.1:1", "node"), args...)...)
	}
	want(t, away("cordon", "far", "--address", address), 0, "node cordoned")
	want(t, away("drain", "far", "--address", address), 0, "node drained")
	want(t, away("uncordon", "far", "--address", address), 0, "node uncordoned")
	want(t, away("drain", "far"), 5, "find node far: reach coordinator 127.0.0.1:1", "--address")
	want(t, away("drain", "other", "--address", address), 6, "not spiffe://staddle.local/node/other")
	want(t, cli(t, "--node-socket", "/x.sock", "node", "drain", "--address", address), 2, "leave one out")
}

// What can be done for a node that is not reached is done, and said.
func TestNode_ThatIsNotReached(t *testing.T) {
	c := newCluster(t)
	c.addNode("far", "127.0.0.1:1")
	want(t, cli(t, c.flags("node", "cordon", "far")...), 0, "node far cordoned by its record alone", "itself does not know of it", "connection refused")
	if !c.cordonedByRecord("far") {
		t.Error("the record does not say cordoned")
	}
	want(t, cli(t, c.flags("node", "uncordon", "far")...), 0, "node far uncordoned", "itself was not asked")
	if c.cordonedByRecord("far") {
		t.Error("the record says cordoned after uncordon")
	}
	want(t, cli(t, c.flags("node", "drain", "far")...), 5, "drain node far", "connection refused", "cordoned by its record, and not drained",
		"try: the same again once the node is reached", "staddle delete node far")
	if !c.cordonedByRecord("far") {
		t.Error("the record does not say cordoned after a drain that did not reach the node")
	}
	c.change(func(revision uint64) {
		r := c.records["KIND_NODE/far"]
		r.GetNode().Status.Holding, r.Meta.Revision = true, revision
		r.GetNode().Placement = &resourcev1.NodePlacement{LostSince: timestamppb.Now()}
	})
	want(t, cli(t, c.flags("node", "uncordon", "far")...), 5, "its record is uncordoned, what the node itself says is not", "connection refused", "no session since")
	want(t, cli(t, c.flags("node", "cordon", "nobody")...), 3, "nobody")
}

// A node on this machine is asked on its socket, if it is that node and not one of
// another cluster with the same name.
func TestNode_OnThisMachine(t *testing.T) {
	root, err := os.MkdirTemp("", "sn-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	paths := config.Paths{Root: root}
	for _, dir := range []string{paths.Etc(), paths.Run()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(paths.NodeFile(), []byte("version: 1\nname: here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, local, far := newCluster(t), &fakePresence{}, &fakePresence{}
	serveSocket(t, paths.Socket("presence"), local)
	local.uid = c.addNode("here", serveGateway(t, c, "here", far))
	here := func(args ...string) result { return cli(t, append(c.flags("--root", root, "node"), args...)...) }
	want(t, here("cordon", "here"), 0, "node here cordoned\n")
	if len(local.asked) != 1 || len(far.asked) != 0 {
		t.Errorf("asked on the socket: %q, through the gateway: %q; want the socket alone", local.asked, far.asked)
	}
	local.uid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	want(t, here("uncordon", "here"), 0, "node here uncordoned\n")
	if len(local.asked) != 1 || len(far.asked) != 1 {
		t.Errorf("asked on the socket of another cluster's node: %q, through the gateway: %q", local.asked, far.asked)
	}
	want(t, here("--coordinator", "127.0.0.1:1", "cordon", "here"), 0, "node cordoned", "the node alone is asked")
	if len(local.asked) != 2 {
		t.Errorf("without a coordinator the node here was asked %q", local.asked)
	}
}
