package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/e2e/bed"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// callPeriod is the time between two calls on one socket: two hundred per second.
const callPeriod = 5 * time.Millisecond

// TestMachine_RestartsAndKillsRefuseNoCall calls every socket of a machine two
// hundred times per second, and the coordinator's TCP socket as well, while every
// component in turn is restarted and then killed, and the supervisor replaces its
// program. No call that may be repeated fails.
func TestMachine_RestartsAndKillsRefuseNoCall(t *testing.T) {
	b := bed.New(t, bed.Options{Supervisor: "  backoff: {initial: 20ms, cap: 200ms}"})
	b.Start()
	b.WaitReady()
	graph, err := b.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	components := slices.Sorted(maps.Keys(graph))
	calls := eachSocket(b, components)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, c := range calls {
		wg.Go(func() { c.run(ctx) })
	}
	for _, name := range components {
		pid := b.PID(name)
		if _, err := supervisorv1.NewSupervisorServiceClient(b.Conn("supervisor")).
			RestartComponent(t.Context(), &supervisorv1.RestartComponentRequest{Name: name}); err != nil {
			t.Errorf("restart %s: %v", name, err)
		}
		otherProcess(t, b, name, pid)
		pid = b.PID(name)
		b.Kill(name)
		otherProcess(t, b, name, pid)
	}
	replaceSupervisor(t, b)
	stop()
	wg.Wait()
	for _, c := range calls {
		if c.made < 200 || len(c.failed) > 0 {
			t.Errorf("%s: %d of %d calls failed: %v", c.name, len(c.failed), c.made, c.failed)
		}
		t.Logf("%s: %d calls, longest %s", c.name, c.made, c.longest)
	}
	b.WaitReady()
}

// caller calls one socket at its pace, and connects to it anew each time: the
// first waits for a server if it must, the second would see any refusal.
type caller struct {
	name             string
	network, address string
	call             func(context.Context) error
	connect          func(network, address string) error

	mu      sync.Mutex // guards all below
	made    int
	longest time.Duration
	failed  []error
}

// atOnce bounds the calls in flight on one socket.
const atOnce = 100

func (c *caller) run(ctx context.Context) {
	tick := time.NewTicker(callPeriod)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait() // calls that were begun are waited for
	slots := make(chan struct{}, atOnce)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			err := c.call(context.WithoutCancel(ctx))
			took := time.Since(begin)
			c.note(took, errors.Join(err, c.connect(c.network, c.address)))
		})
	}
}

func (c *caller) note(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	c.longest = max(c.longest, took)
	if err != nil && len(c.failed) < 5 {
		c.failed = append(c.failed, fmt.Errorf("at call %d: %w", c.made, err))
	}
}

// eachSocket has a caller for each socket that speaks our contracts.
func eachSocket(b *bed.Bed, components []string) []*caller {
	var all []*caller
	for _, name := range append([]string{"supervisor"}, components...) {
		if name == "containerd" { // none of ours: it makes its socket itself
			continue
		}
		all = append(all, &caller{
			name: name, network: "unix", address: b.Paths.Socket(name), call: statusOf(b.Conn(name)), connect: b.Connects,
		})
	}
	records := b.Records()
	list := func(ctx context.Context) error {
		_, err := records.ListResources(ctx, &coordinatorv1.ListResourcesRequest{Kind: resourcev1.Kind_KIND_NODE})
		return err
	}
	return append(all, &caller{name: "coordinator over TCP", network: "tcp", address: "127.0.0.1:8443", call: list, connect: b.Connects})
}

func statusOf(conn *grpc.ClientConn) func(context.Context) error {
	client := processv1.NewProcessServiceClient(conn)
	return func(ctx context.Context) error {
		_, err := client.GetStatus(ctx, &processv1.GetStatusRequest{})
		return err
	}
}

// otherProcess waits until a component is ready in another process than pid.
func otherProcess(t *testing.T, b *bed.Bed, name string, pid int) {
	t.Helper()
	bed.Eventually(t, 30*time.Second, name+" is ready again", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		c := graph[name]
		return c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_READY && int(c.GetPid()) != pid, c.String()
	})
}

// replaceSupervisor has the supervisor replace its program, and wants the process
// and all components to be the same afterwards, containerd among them.
func replaceSupervisor(t *testing.T, b *bed.Bed) {
	t.Helper()
	before, err := b.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	self := supervisorStatus(t, b)
	b.OK("component", "restart", "supervisor")
	if now := supervisorStatus(t, b); now.GetPid() != self.GetPid() || !now.GetStartedAt().AsTime().After(self.GetStartedAt().AsTime()) {
		t.Errorf("got %v, want another program in the process of %v", now, self)
	}
	b.WaitComponents()
	after, err := b.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range before {
		if after[name].GetPid() != c.GetPid() || after[name].GetStarts() != c.GetStarts() {
			t.Errorf("got %v, want %s in the same process as before: %v", after[name], name, c)
		}
	}
}

func supervisorStatus(t *testing.T, b *bed.Bed) *processv1.GetStatusResponse {
	t.Helper()
	st, err := processv1.NewProcessServiceClient(b.Conn("supervisor")).GetStatus(t.Context(), &processv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return st
}
