package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// components are those of a bed in the order in which they can be started.
func components(t *testing.T, b *bed.Bed) []*supervisorv1.Component {
	t.Helper()
	r, err := supervisorv1.NewSupervisorServiceClient(b.Conn("supervisor")).GetGraph(t.Context(), &supervisorv1.GetGraphRequest{})
	must(t, err)
	return r.GetComponents()
}

// starts is how often each component was started.
func starts(t *testing.T, b *bed.Bed) map[string]uint32 {
	t.Helper()
	all := map[string]uint32{}
	for _, c := range components(t, b) {
		all[c.GetName()] = c.GetStarts()
	}
	return all
}

// restart asks the supervisor for a fresh process of a component.
func restart(t *testing.T, b *bed.Bed, component string) {
	t.Helper()
	r := &supervisorv1.RestartComponentRequest{Name: component}
	_, err := supervisorv1.NewSupervisorServiceClient(b.Conn("supervisor")).RestartComponent(t.Context(), r)
	must(t, err)
}

// exit is the end of a process, as the kernel told it.
type exit struct {
	name string
	at   time.Time
}

// exits tells of the end of each component. The processes end, or the test has
// failed.
func exits(t *testing.T, all []*supervisorv1.Component) <-chan exit {
	t.Helper()
	told := make(chan exit, len(all))
	for _, c := range all {
		fd, err := unix.PidfdOpen(int(c.GetPid()), 0)
		must(t, err)
		go func() { // ends with the process
			defer unix.Close(fd)
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			err := error(unix.EINTR)
			for errors.Is(err, unix.EINTR) {
				_, err = unix.Poll(poll, -1)
			}
			told <- exit{c.GetName(), time.Now()}
		}()
	}
	return told
}

// SUP-5: everything stops in the exact reverse of the order in which it starts, one
// after the other; and the cluster knows that the node has left before anything that
// a sandbox needs has ended.
func TestNode_SUP5_StopIsTheReverse(t *testing.T) {
	far, b, supervisor := joined(t, bed.Options{})
	far.OK("disk", "create", "data", "--node", bed.NodeName)
	far.OK("run", "-d", "--name", "web", "--disk", "data:/data", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, far, "web", "RUNNING")
	web := onHost(t, b, "web")

	order := components(t, b)
	told := exits(t, order)
	must(t, supervisor.Signal(syscall.SIGTERM))
	var got []exit
	for range order {
		select {
		case e := <-told:
			got = append(got, e)
		case <-time.After(waitLong):
			t.Fatalf("only %v have ended", got)
		}
	}
	for i, e := range got {
		if want := order[len(order)-1-i].GetName(); e.name != want {
			t.Errorf("the stop in place %d is that of %s, want %s; all: %v", i, e.name, want, got)
		}
	}
	bed.Eventually(t, waitLong, "the runner is gone", runnerGone(b))
	node := get(t, far, resourcev1.Kind_KIND_NODE, bed.NodeName).GetNode()
	if left := node.GetPlacement().GetLeftAt(); left == nil || left.AsTime().After(got[0].at) {
		t.Errorf("the cluster knows that the node left at %v, want before %s ended at %v", left, got[0].name, got[0].at)
	}

	b.Start()
	b.WaitReady()
	now := await(t, b, web.GetUid(), "running", running)
	if sprint(pids(now)) != sprint(pids(web.GetStatus())) || now.GetAttempt() != 1 {
		t.Errorf("the sandbox was touched: %v, want %v", now, web.GetStatus())
	}
	far.OK("rm", "web")
	far.OK("disk", "rm", "data")
	settled(t, b)
}

// SUP-5, with the sandboxes stopped first: the node is out of use before the first of
// them is asked to end, each has its grace, the disk is unmounted before anything that
// it needs has ended, and then everything ends in the reverse of its start.
func TestNode_SUP5_ADrainComesBeforeTheStop(t *testing.T) {
	const grace = 4 * time.Second
	far, b, _ := joined(t, bed.Options{})
	far.OK("disk", "create", "data", "--node", bed.NodeName)
	far.OK("apply", "-f", deafFile(t, grace))
	awaitPhase(t, far, "web", "RUNNING")
	mounted := func() []string {
		found, err := filepath.Glob(filepath.Join(b.Paths.Run(), "storage", "*"))
		must(t, err)
		return found
	}
	if len(mounted()) == 0 {
		t.Fatal("the disk is not mounted where it is looked for")
	}
	order := components(t, b)
	told := exits(t, order)
	began := time.Now()
	shutdown := b.Begin("shutdown", "--drain")
	bed.Eventually(t, waitLong, "presence says that the node is not ready", func(ctx context.Context) (bool, string) {
		p, err := b.Presence(ctx)
		return err == nil && !p.GetReady(), p.String()
	})
	if len(b.Workloads()) == 0 || len(mounted()) == 0 {
		t.Errorf("the sandbox has ended within %s, before the node was out of use; want it alive for its grace of %s", time.Since(began), grace)
	}
	for i := range order {
		var e exit
		select {
		case e = <-told:
		case <-time.After(waitLong):
			t.Fatalf("only %d components have ended", i)
		}
		if want := order[len(order)-1-i].GetName(); e.name != want {
			t.Errorf("the stop in place %d is that of %s, want %s", i, e.name, want)
		}
		if left, disks := b.Workloads(), mounted(); i == 0 && (len(left) > 0 || len(disks) > 0) {
			t.Errorf("when %s ended these were there: processes %v, disks %v", e.name, left, disks)
		}
		if took := e.at.Sub(began); i == 0 && took < grace {
			t.Errorf("the stop began after %s, want the grace of %s before it", took, grace)
		}
	}
	if r := shutdown.Wait(); r.Code != 0 {
		t.Errorf("shutdown ended with %d: %s", r.Code, r.Stderr)
	}
	bed.Eventually(t, waitLong, "the runner is gone", runnerGone(b))

	b.Start()
	b.WaitComponents()
	b.OK("--node-socket", b.HostSocket(), "node", "uncordon")
	b.WaitReady()
	awaitPhase(t, far, "web", "RUNNING")
	far.OK("rm", "web")
	far.OK("disk", "rm", "data")
	settled(t, b)
}

// deafFile is a document of a sandbox with a disk that uses all of its grace.
func deafFile(t *testing.T, grace time.Duration) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.yaml")
	text := fmt.Sprintf(`kind: Sandbox
name: web
spec:
  desired: RUNNING
  termination_grace_period: %s
  containers:
    - name: main
      image: %q
      args: [deaf]
      disks: [{disk: data, path: /data}]
`, grace, bed.ProbeImage)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// breakable makes a component one that ends at once for as long as what it returns
// exists. Call it before Start.
func breakable(t *testing.T, b *bed.Bed, component string) (broken string) {
	t.Helper()
	bin := filepath.Join(b.Paths.Root, "bin")
	broken = filepath.Join(b.Paths.Root, "broken-"+component)
	script := fmt.Sprintf("#!/bin/sh\nif [ -e %s ]; then sleep 0.1; exit 1; fi\nexec %s/staddle-node %s \"$@\"\n", broken, bin, component)
	must(t, os.WriteFile(filepath.Join(bin, "staddle-"+component), []byte(script), 0o755))
	return broken
}

// loop follows a component that ends again and again, asks every 10 s for a restart of
// it, and returns when each start was seen.
func loop(t *testing.T, b *bed.Bed, component string, before uint32, watched time.Duration) (at []time.Duration) {
	t.Helper()
	began := time.Now()
	asked := began
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, which the server might notice first
	defer cancel()
	defer time.AfterFunc(watched, cancel).Stop()
	stream, err := supervisorv1.NewSupervisorServiceClient(b.Conn("supervisor")).WatchGraph(ctx, &supervisorv1.WatchGraphRequest{})
	must(t, err)
	for {
		graph, err := stream.Recv()
		if ctx.Err() != nil {
			return at
		}
		must(t, err)
		i := slices.IndexFunc(graph.GetComponents(), func(c *supervisorv1.Component) bool { return c.GetName() == component })
		c := graph.GetComponents()[i]
		for len(at) < int(c.GetStarts()-before) {
			at = append(at, time.Since(began))
		}
		if time.Since(asked) > 10*time.Second && c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF {
			asked = time.Now()
			restart(t, b, component)
		}
	}
}

// SUP-9, in 30 s instead of five minutes: a component that ends again and again is
// started more and more seldom, whatever a person asks for meanwhile; it costs
// nothing and nobody else; and it is never given up.
func TestMachine_SUP9_CrashLoopIsBounded(t *testing.T) {
	const component, watched = "storage-agent", 30 * time.Second
	b := bed.New(t, bed.Options{})
	broken := breakable(t, b, component)
	supervisor := b.Start()
	b.WaitReady()
	importProbe(t, b)
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	web, before := onHost(t, b, "web"), starts(t, b)

	must(t, os.WriteFile(broken, nil, 0o644))
	used, err := bed.ProcessorTime(supervisor.Pid)
	must(t, err)
	b.Kill(component)
	began := time.Now()
	at := loop(t, b, component, before[component], watched)
	now, err := bed.ProcessorTime(supervisor.Pid)
	must(t, err)
	t.Logf("%s was started after %v", component, at)
	// Waits that double from 100 ms up to 10 s make nine starts in 30 s; and two were asked for.
	if len(at) < 6 || len(at) > 15 || at[0] > time.Second {
		t.Errorf("it was started after %v: want the first at once, and 6 to 15 in all", at)
	}
	if share := (now - used).Seconds() / time.Since(began).Seconds(); share > 0.02 {
		t.Errorf("the supervisor used %.1f %% of a processor meanwhile, want 2 %% at most", 100*share)
	}
	c := condition(t.Context(), b, "StorageAgent")
	if c.GetState() != resourcev1.ConditionState_CONDITION_STATE_FALSE || !strings.Contains(c.GetReason(), component) {
		t.Errorf("the node says of it %v, want that it is false and why", c)
	}
	if p, err := b.Presence(t.Context()); err != nil || p.GetReady() {
		t.Errorf("the node is ready without it: %v, %v", p, err)
	}
	if s := await(t, b, web.GetUid(), "running", running); sprint(pids(s)) != sprint(pids(web.GetStatus())) {
		t.Errorf("the sandbox was touched: %v, want %v", s, web.GetStatus())
	}

	must(t, os.Remove(broken))
	b.WaitReady() // within a minute, by itself
	after := starts(t, b)
	for name, n := range before {
		if name != component && after[name] != n {
			t.Errorf("%s was started %d times more for the sake of %s", name, after[name]-n, component)
		}
	}
}

// SUP-10: a component that could not do its job for a while and can again is as good
// as ever, also for what needs it and was started meanwhile.
func TestMachine_SUP10_DipIsNoEnd(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "count", "1ms")
	awaitPhase(t, b, "web", "RUNNING")
	web, before := onHost(t, b, "web"), starts(t, b)
	program := filepath.Join(b.Paths.Root, "bin", config.ContainerdName)

	// sandboxhost lives, but has no containerd.
	must(t, os.Rename(program, program+".away"))
	b.Kill(config.ContainerdName)
	state := func(name string, want supervisorv1.ComponentState, says string) {
		t.Helper()
		bed.Eventually(t, waitLong, name+" is "+want.String(), func(ctx context.Context) (bool, string) {
			graph, err := b.Graph(ctx)
			if err != nil {
				return false, err.Error()
			}
			c := graph[name]
			return c.GetState() == want && strings.Contains(c.GetReason(), says), c.String()
		})
	}
	state("sandboxhost", supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY, config.ContainerdName)
	restart(t, b, "sandbox-agent")
	state("sandbox-agent", supervisorv1.ComponentState_COMPONENT_STATE_STARTING, "sandboxhost")
	must(t, os.Rename(program+".away", program))

	back := time.Now()
	b.WaitReady()
	if took := time.Since(back); took > 20*time.Second {
		t.Errorf("all were ready %v after the dip, want 20 s at most", took)
	}
	after := starts(t, b)
	for name, n := range before {
		want := n
		if name == "sandbox-agent" || name == config.ContainerdName {
			want++
		}
		if name != config.ContainerdName && after[name] != want {
			t.Errorf("%s was started %d times, want %d", name, after[name], want)
		}
	}
	if said := strings.Count(b.Logs()["sandboxhost"], `"from":"ready","to":"not_ready"`); said != 1 {
		t.Errorf("sandboxhost told %d times that it was not ready, want once", said)
	}
	if s := await(t, b, web.GetUid(), "running", running); sprint(pids(s)) != sprint(pids(web.GetStatus())) || s.GetAttempt() != 1 {
		t.Errorf("the sandbox was touched: %v, want %v", s, web.GetStatus())
	}
}

// One that gives no answer is ended and started again within seconds, and nothing
// else is.
func TestMachine_SilentComponentIsReplaced(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	before := starts(t, b)
	for _, name := range []string{"storage", "sandboxhost", config.ContainerdName} {
		must(t, syscall.Kill(b.PID(name), syscall.SIGSTOP))
		bed.Eventually(t, 30*time.Second, name+" is replaced", func(ctx context.Context) (bool, string) {
			graph, err := b.Graph(ctx)
			if err != nil {
				return false, err.Error()
			}
			return graph[name].GetStarts() > before[name], graph[name].String()
		})
		before[name]++
		b.WaitReady()
	}
	if after := starts(t, b); sprint(after) != sprint(before) {
		t.Errorf("components were started %v times, want %v", after, before)
	}
}
