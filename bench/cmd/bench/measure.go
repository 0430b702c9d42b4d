package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"staddle.internal/bench/floor"
	"staddle.internal/e2e/bed"
	"staddle.internal/e2e/image"
	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/id"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// bench is one run.
type bench struct {
	t     *harness
	bed   *bed.Bed
	floor *floor.Floor
	out   []figure

	supervisor int // process id
}

func measure(ctx context.Context, t *harness, p program) []figure {
	b := &bench{t: t, bed: bed.New(t, bed.Options{Node: "allow_host_network: true", Supervisor: fmt.Sprintf("  backoff: {stable: %s}", stable)})}
	b.supervisor = b.bed.Start().Pid
	b.bed.WaitReady()
	b.prepare(ctx)
	parts := map[string]func(){
		"start":    func() { b.startOfAll(ctx) },
		"calls":    func() { b.calls(ctx) },
		"rest":     func() { b.rest(ctx, "at rest, no sandboxes", 0) },
		"serial":   func() { b.serial(ctx, p.serial) },
		"parallel": func() { b.parallel(ctx, p.batch) },
		"network":  func() { b.network(ctx, p.serial) },
		"exec":     func() { b.exec(ctx, p.serial) },
		"logs":     func() { b.logs(ctx, p.output<<20) },
		"kills":    func() { b.kills(ctx, p.kills, p.only) },
	}
	for _, name := range allParts {
		if slices.Contains(p.parts, name) {
			parts[name]()
		}
	}
	b.check(b.floor.Close())
	return b.out
}

func (b *bench) check(err error) {
	if err != nil {
		b.t.Fatal(err)
	}
}

// add notes a figure; a floor of 0 means that there is none.
func (b *bench) add(name, unit string, ours, floor float64, reach string) {
	f := figure{Name: name, Unit: unit, Ours: ours, Floor: floor, Reach: reach}
	if floor != 0 {
		f.Ratio = ours / floor
	}
	b.out = append(b.out, f)
}

// startOfAll is how long our processes took from containerd's readiness on.
func (b *bench) startOfAll(ctx context.Context) {
	graph, err := b.bed.Graph(ctx)
	b.check(err)
	from := graph["containerd"].GetSince().AsTime()
	to := from
	for _, c := range graph {
		if c.GetState() != supervisorv1.ComponentState_COMPONENT_STATE_READY {
			b.t.Fatalf("%s is not ready: %s", c.GetName(), c.GetReason())
		}
		if since := c.GetSince().AsTime(); since.After(to) {
			to = since
		}
	}
	b.add("all processes ready after containerd", "ms", ms(to.Sub(from)), 0, "<= 3000, aim 1500")
}

// prepare brings the same image to both sides.
func (b *bench) prepare(ctx context.Context) {
	dir, err := os.MkdirTemp("", "staddle-bench-")
	b.check(err)
	b.t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.t.Error(err)
		}
	})
	program, tar := filepath.Join(dir, "probe"), filepath.Join(dir, "probe.tar")
	b.check(image.Build("e2e/cmd/probe", program))
	img, err := image.FromProgram(program)
	b.check(err)
	b.check(image.WriteArchive(img, bed.ProbeImage, tar))
	b.bed.OK("--node-socket", b.bed.HostSocket(), "image", "import", tar)
	address := filepath.Join(b.bed.Paths.Run(), "containerd.sock")
	b.floor, err = floor.Open(ctx, address, bed.ProbeImage, tar, "/run/netns/"+b.bed.NS, dir)
	b.check(err)
}

// start starts one of ours. See startOf.
func (b *bench) start(ctx context.Context) (string, time.Duration, error) {
	return b.startOf(ctx, func(*resourcev1.SandboxSpec) {})
}

// startOf starts one of ours, otherwise than the others, and returns how long it took until
// a watcher saw it run, or ended.
func (b *bench) startOf(ctx context.Context, otherwise func(*resourcev1.SandboxSpec)) (string, time.Duration, error) {
	uid := string(id.NewSandbox())
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	watch, err := b.bed.Host().WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{Uid: uid})
	if err != nil {
		return "", 0, err
	}
	for synced := false; !synced; {
		m, err := watch.Recv()
		if err != nil {
			return "", 0, err
		}
		synced = m.GetSynced()
	}
	memory, pids := int64(256<<20), int64(4096)
	spec := &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER,
		Containers: []*resourcev1.ContainerSpec{{
			Name: "c", Image: bed.ProbeImage, Args: []string{"sleep"},
			Limits: &resourcev1.ResourceLimits{MemoryLimitBytes: &memory, PidsLimit: &pids},
		}},
	}
	otherwise(spec)
	began := time.Now()
	_, err = b.bed.Host().EnsureSandbox(ctx, &sandboxhostv1.EnsureSandboxRequest{
		Uid: uid, Name: "bench-" + id.Sandbox(uid).Short(), Generation: 1, Manager: "local", Spec: spec,
	})
	if err != nil {
		return "", 0, err
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			return "", 0, err
		}
		status := m.GetChanged().GetStatus()
		switch status.GetPhase() {
		case resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED:
			return uid, time.Since(began), nil
		case resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED:
			return "", 0, errors.New(status.GetMessage())
		}
	}
}

// remove removes one of ours and waits until nothing is left.
func (b *bench) remove(ctx context.Context, uid string) error {
	if _, err := b.bed.Host().RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: "local"}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	watch, err := b.bed.Host().WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{Uid: uid})
	if err != nil {
		return err
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			return err
		}
		if m.GetChanged().GetStatus().GetTornDownAt() != nil {
			break
		}
	}
	_, err = b.bed.Host().ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: uid, Manager: "local"})
	return err
}

// serial starts one after the other, ours and the floor's in turn.
func (b *bench) serial(ctx context.Context, n int) {
	var ours, floors []float64
	for i := range n + 2 {
		began := time.Now()
		s, err := b.floor.Start(ctx, "sleep")
		b.check(err)
		took := ms(time.Since(began))
		b.check(s.Remove(ctx))
		uid, mine, err := b.start(ctx)
		b.check(err)
		b.check(b.remove(ctx, uid))
		if i >= 2 { // the first ones warm up both
			floors, ours = append(floors, took), append(ours, ms(mine))
		}
	}
	for _, q := range []struct {
		name  string
		at    float64
		reach string
	}{{"p50", 0.5, "<= floor + 40 ms, aim + 15"}, {"p90", 0.9, ""}, {"p99", 0.99, ""}} {
		b.add("create to RUNNING, one by one, "+q.name, "ms", quantile(ours, q.at), quantile(floors, q.at), q.reach)
	}
}

// parallel starts many, ten at a time, and looks at the node with them.
func (b *bench) parallel(ctx context.Context, n int) {
	started := make([]*floor.Started, n)
	floorTook := b.tenAtATime(n, func(i int) (err error) { started[i], err = b.floor.Start(ctx, "sleep"); return err })
	b.tenAtATime(n, func(i int) error { return started[i].Remove(ctx) })
	uids := make([]string, n)
	took := b.tenAtATime(n, func(i int) (err error) { uids[i], _, err = b.start(ctx); return err })
	b.add(fmt.Sprintf("%d sandboxes, ten at a time", n), "s", took.Seconds(), floorTook.Seconds(), "<= 1.3, aim 1.1")
	b.rest(ctx, fmt.Sprintf("with %d sandboxes", n), n)
	b.adoption(ctx, n, "<= 1500, aim 500")
	more := make([]string, n)
	b.tenAtATime(n, func(i int) (err error) { more[i], _, err = b.start(ctx); return err })
	b.waitStable(ctx, "sandboxhost")
	b.adoption(ctx, 2*n, "<= 3000, aim 1000")
	uids = append(uids, more...)
	b.tenAtATime(len(uids), func(i int) error { return b.remove(ctx, uids[i]) })
}

func (b *bench) tenAtATime(n int, do func(i int) error) time.Duration {
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(10)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	b.check(g.Wait())
	return time.Since(began)
}

// adoption is how long a killed sandboxhost needs to be ready with n survivors.
func (b *bench) adoption(ctx context.Context, n int, reach string) {
	b.add(fmt.Sprintf("adoption of %d survivors, kill of sandboxhost to ready", n), "ms", ms(b.killed(ctx, "sandboxhost")), 0, reach)
}

// stable is when a process that was started counts as stable: its next failure is
// then its first again, and no back-off grows.
const stable = time.Second

// kills is how long each process needs from its death to being ready again, n deaths
// spread over all, or those of one alone. Each has been stable before its turn.
func (b *bench) kills(ctx context.Context, n int, only string) {
	var all []float64
	each := map[string][]float64{}
	names := append(config.Processes(), config.ContainerdName)
	if only != "" {
		names = []string{only}
	}
	for i := range n {
		name := names[i%len(names)]
		b.bed.WaitComponents()
		b.waitStable(ctx, name)
		took := ms(b.killed(ctx, name))
		each[name], all = append(each[name], took), append(all, took)
	}
	for _, name := range names[:min(n, len(names))] {
		b.add(fmt.Sprintf("kill of %s to ready, p50 of %d", name, len(each[name])), "ms", quantile(each[name], 0.5), 0, "")
	}
	b.add(fmt.Sprintf("kill of any process to ready, p50 of %d", len(all)), "ms", quantile(all, 0.5), 0, "")
	b.add(fmt.Sprintf("kill of any process to ready, p99 of %d", len(all)), "ms", quantile(all, 0.99), 0, "<= 1000, aim 500")
}

// waitStable waits until a component has been ready for as long as makes it stable.
func (b *bench) waitStable(ctx context.Context, name string) {
	graph, err := b.bed.Graph(ctx)
	b.check(err)
	b.check(backoff.Wait(ctx, time.Until(graph[name].GetSince().AsTime().Add(stable))))
}

// killed ends a component and returns how long it took to be ready again, as the
// supervisor saw it.
func (b *bench) killed(ctx context.Context, name string) time.Duration {
	graph, err := b.bed.Graph(ctx)
	b.check(err)
	starts := graph[name].GetStarts()
	began := time.Now()
	b.bed.Kill(name)
	var took time.Duration
	bed.Eventually(b.t, time.Minute, name+" ready again", func(ctx context.Context) (bool, string) {
		graph, err := b.bed.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		c := graph[name]
		took = c.GetSince().AsTime().Sub(began)
		return c.GetStarts() > starts && c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_READY, c.String()
	})
	return took
}

// calls compares one call through our interceptors with bare grpc-go.
func (b *bench) calls(ctx context.Context) {
	bare, end := startBare(b.t)
	defer end()
	ours := processv1.NewProcessServiceClient(b.bed.Conn("sandboxhost"))
	var mine, theirs []float64
	for i := range 3000 {
		began := time.Now()
		_, err := bare.GetStatus(ctx, &processv1.GetStatusRequest{})
		b.check(err)
		middle := time.Now()
		_, err = ours.GetStatus(ctx, &processv1.GetStatusRequest{})
		b.check(err)
		if i >= 500 {
			theirs, mine = append(theirs, us(middle.Sub(began))), append(mine, us(time.Since(middle)))
		}
	}
	b.add("unary call, p50", "us", quantile(mine, 0.5), quantile(theirs, 0.5), "<= 1.5, aim 1.2")
	b.add("unary call, p99", "us", quantile(mine, 0.99), quantile(theirs, 0.99), "")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// quantile is the value below which the part q of all lies.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
