package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// crowd are clients that make sandboxes without a pause, and delete their oldest ones.
type crowd struct {
	api  coordinatorv1.ResourceServiceClient
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex // guards all below
	made   int
	failed error // what none of them may be told
}

// perClient is how many sandboxes each client has at a time.
const perClient = 6

func gather(t *testing.T, b *bed.Bed, clients int) *crowd {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &crowd{api: b.Records(), stop: stop}
	for i := range clients {
		c.wg.Go(func() { c.client(ctx, fmt.Sprintf("crowd%d", i)) }) // waited for in leave
	}
	t.Cleanup(c.leave)
	return c
}

func (c *crowd) client(ctx context.Context, name string) {
	var mine []string
	for n := 0; ctx.Err() == nil; n++ {
		one := fmt.Sprintf("%s-%d", name, n)
		_, err := c.api.CreateResource(ctx, &coordinatorv1.CreateResourceRequest{RequestId: newUID(), Resource: &resourcev1.Resource{
			Meta: &resourcev1.Metadata{Kind: resourcev1.Kind_KIND_SANDBOX, Name: one},
			Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: spec(always, probe("main", "sleep"))}},
		}})
		c.note(err)
		if err == nil {
			mine = append(mine, one)
		}
		if len(mine) > perClient {
			_, err := c.api.DeleteResource(ctx, &coordinatorv1.DeleteResourceRequest{Kind: resourcev1.Kind_KIND_SANDBOX, Name: mine[0]})
			c.note(err)
			if err == nil {
				mine = mine[1:]
			}
		}
	}
}

// note counts what was done. Only that nobody answers may happen.
func (c *crowd) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.made++
	case fault.KindOf(err) != fault.Unavailable && !isEnd(err) && c.failed == nil:
		c.failed = err
	}
}

// isEnd says whether a call ended because the crowd leaves.
func isEnd(err error) bool { return errors.Is(err, context.Canceled) }

// more waits until so many more calls were answered.
func (c *crowd) more(t *testing.T, n int, when string) {
	t.Helper()
	made := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.made
	}
	was := made()
	bed.Eventually(t, time.Minute, fmt.Sprintf("%d more calls are answered %s", n, when), func(context.Context) (bool, string) {
		return made() >= was+n, fmt.Sprint(made() - was)
	})
}

func (c *crowd) leave() {
	c.stop()
	c.wg.Wait()
}

// sandboxes are all records of sandboxes.
func sandboxes(t *testing.T, b *bed.Bed) []*resourcev1.Resource {
	t.Helper()
	r, err := b.Records().ListResources(t.Context(), &coordinatorv1.ListResourcesRequest{Kind: resourcev1.Kind_KIND_SANDBOX, PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetResources()
}

// DRN-2: a drain under load, with sandboxes that are made and deleted at its very
// moment, and the coordinator killed in its middle: what was made after the cordon is
// placed nowhere, and what was placed before is stopped, whenever the node hears of it.
func TestMachine_DRN2_DrainUnderLoad(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	c := gather(t, b, 5)
	c.more(t, 40, "before the drain")

	waiting := b.Begin("node", "drain", bed.NodeName, "--kill-after", "30s", "--reason", "load")
	bed.Eventually(t, waitLong, "the record says cordoned", func(context.Context) (bool, string) {
		n := get(t, b, resourcev1.Kind_KIND_NODE, bed.NodeName)
		return n.GetNode().GetSpec().GetCordoned(), n.String()
	})
	cordoned := time.Now()
	b.Kill("coordinator")
	c.more(t, 20, "during the drain")
	if r := waiting.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "node drained") {
		t.Errorf("drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	nobodyLives(t, b, "after the drain")
	c.more(t, 40, "after the drain")
	c.leave()
	if c.failed != nil {
		t.Errorf("a client was told: %v", c.failed)
	}
	late := 0
	for _, r := range sandboxes(t, b) {
		if r.GetMeta().GetCreatedAt().AsTime().Before(cordoned) {
			continue
		}
		late++
		if node := r.GetSandbox().GetPlacement().GetNode(); node != "" {
			t.Errorf("%s was made %v after the cordon, and placed on %s", r.GetMeta().GetName(), r.GetMeta().GetCreatedAt().AsTime().Sub(cordoned), node)
		}
	}
	if late == 0 {
		t.Error("no sandbox was made after the cordon: this has shown nothing")
	}
	nobodyLives(t, b, "under load after the drain")

	b.OK("node", "uncordon", bed.NodeName)
	bed.Eventually(t, 5*time.Second, "what waited is placed", func(context.Context) (bool, string) {
		var left []string
		for _, r := range sandboxes(t, b) {
			if r.GetSandbox().GetPlacement().GetNode() == "" {
				left = append(left, r.GetMeta().GetName()+": "+r.GetSandbox().GetPlacement().GetReason())
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
	var names []string
	for _, r := range sandboxes(t, b) {
		if r.GetMeta().GetDeletingAt() == nil { // the others may be gone at any moment
			names = append(names, r.GetMeta().GetName())
		}
	}
	b.OK(append([]string{"delete", "sandbox"}, names...)...)
	bed.Eventually(t, waitLong, "all are gone", func(context.Context) (bool, string) {
		left := sandboxes(t, b)
		return len(left) == 0, fmt.Sprint(len(left))
	})
	settled(t, b)
}

// DRN-4: what is left of a node that is gone for good holds up nobody: its sandboxes
// and leases are finished when its record is removed, and the others are drained and
// given work as if it had never been.
func TestNode_DRN4_RemovedNodeHoldsUpNoDrain(t *testing.T) {
	far, b := afar(t)
	c := bed.New(t, bed.Options{Cluster: far, Name: bed.SecondNode, Node: shortSession})
	supervisor := c.Start()
	c.WaitReady()
	importProbe(t, c)
	far.OK("node", "cordon", bed.NodeName)
	far.OK("disk", "create", "data", "--node", "node2")
	apply(t, far, sandboxYAML("there", "sleep", "")+sandboxYAML("halted", "sleep", "")+
		fmt.Sprintf("kind: Sandbox\nname: keeper\nspec:\n  desired: RUNNING\n  containers:\n    - {name: main, image: %q, args: [sleep], disks: [{disk: data, path: /data}]}\n", bed.ProbeImage))
	for _, name := range []string{"there", "halted", "keeper"} {
		awaitPhase(t, far, name, "RUNNING")
		if node := get(t, far, resourcev1.Kind_KIND_SANDBOX, name).GetSandbox().GetPlacement().GetNode(); node != "node2" {
			t.Fatalf("%s is on %q, want node2", name, node)
		}
	}
	far.OK("stop", "halted")
	far.OK("node", "uncordon", bed.NodeName)
	apply(t, far, sandboxYAML("here", "sleep", ""))
	awaitPhase(t, far, "here", "RUNNING")

	c.Cut()
	c.KillRunner(supervisor, true)
	far.OK("delete", "sandbox", "there", "--no-wait") // whose node never says that it is torn down
	bed.Eventually(t, time.Minute, "the coordinator says that node2 is lost", func(context.Context) (bool, string) {
		p := get(t, far, resourcev1.Kind_KIND_NODE, "node2").GetNode().GetPlacement()
		return p.GetLostSince() != nil, p.String()
	})
	if r := far.CLI("node", "drain", "node2"); r.Code != 5 || !strings.Contains(r.Stderr, "staddle delete node node2") {
		t.Errorf("drain of a lost node: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	far.OK("delete", "node", "node2")
	if out := far.OK("node", "drain", bed.NodeName); !strings.Contains(out, "node drained: 1 sandboxes are dead") {
		t.Errorf("drain of the node that is left says %q", out)
	}
	far.OK("node", "uncordon", bed.NodeName)
	apply(t, far, sandboxYAML("again", "sleep", ""))
	awaitPhase(t, far, "again", "RUNNING")
	awaitPhase(t, far, "here", "RUNNING")
	bed.Eventually(t, waitLong, "nothing is left of the node that is gone", func(context.Context) (bool, string) {
		out := far.OK("get", "sandbox") + far.OK("get", "disklease")
		for _, name := range []string{"there", "halted", "keeper", "node2"} {
			if strings.Contains(out, name) {
				return false, out
			}
		}
		return get(t, far, resourcev1.Kind_KIND_DISK, "data").GetDisk().GetPlacement().GetHolder() == "", out
	})
	far.OK("disk", "rm", "data")
	far.OK("delete", "sandbox", "here", "again")
	settled(t, b)
}

// DRN-5: the next holder of a disk is placed while its node is drained, with the disk
// still held by the one before. It waits for the release and not by failing: its first
// attempt is the one that runs, with all that was written.
func TestMachine_DRN5_NextHolderOfADiskAfterADrain(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	holder := func(name, verb string) string {
		return fmt.Sprintf("kind: Sandbox\nname: %s\nspec:\n  desired: RUNNING\n  termination_grace_period: 1s\n  containers:\n"+
			"    - {name: main, image: %q, args: [%s], disks: [{disk: data, path: /data}]}\n", name, bed.ProbeImage, verb)
	}
	first := func(name string) {
		t.Helper()
		awaitPhase(t, b, name, "RUNNING")
		if s := onHost(t, b, name).GetStatus(); s.GetAttempt() != 1 || len(s.GetExits()) != 0 {
			t.Errorf("%s runs in attempt %d after exits %v, want its first to run", name, s.GetAttempt(), s.GetExits())
		}
	}
	apply(t, b, holder("d0", "sleep"))
	first("d0")
	const rounds = 6
	for round := 1; round <= rounds; round++ {
		mustAppend(t, filepath.Join(diskPath(t, b), "file"), fmt.Sprintf("%d\n", round))
		before, next := fmt.Sprintf("d%d", round-1), fmt.Sprintf("d%d", round)
		change := func() {
			b.OK("delete", "sandbox", before, "--no-wait")
			apply(t, b, holder(next, []string{"sleep", "deaf"}[round%2]))
		}
		if round%2 == 0 { // at the very moment, or when it is done
			b.OK("node", "drain", bed.NodeName, "--no-wait")
			change()
			b.OK("node", "drain", bed.NodeName)
		} else {
			b.OK("node", "drain", bed.NodeName)
			change()
		}
		if round%3 == 0 {
			b.Kill("storage-agent")
		}
		nobodyLives(t, b, "while the node is drained")
		began := time.Now()
		b.OK("node", "uncordon", bed.NodeName)
		first(next)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("round %d: the disk was handed over in %v, want at most 15 s", round, took)
		}
	}
	raw, err := os.ReadFile(filepath.Join(diskPath(t, b), "file"))
	if want := "1\n2\n3\n4\n5\n6\n"; err != nil || string(raw) != want {
		t.Errorf("the disk holds %q, %v; want %q", raw, err, want)
	}
	b.OK("delete", "sandbox", fmt.Sprintf("d%d", rounds))
	b.OK("disk", "rm", "data")
	settled(t, b)
}

func mustAppend(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}
