package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// foreign is an image for a platform that no test machine has.
func foreign(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Architecture = "s390x"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// TestNode_LIF4_FailedBootsLeaveNothing has two of each kind at a time instead of
// 25, on a subnet with 13 addresses, so that one that is not given back is missed.
// A disk that is busy is no failure: the sandbox waits for it. A node alone has no
// disks and refuses such a wish at once.
func TestNode_LIF4_FailedBootsLeaveNothing(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "network: {subnet: 10.77.0.0/28}"})
	registry := newSlow() // never goes on
	stalled := push(t, serveOn(t, b.Listen(), registry.wrap), larger(t, probeImage(t), 1<<20), "test/stalled:1")
	other := push(t, serveOn(t, b.Listen(), nil), foreign(t, probeImage(t)), "test/foreign:1")

	nothing := probe("c", "sleep")
	nothing.Command = []string{"/not/there"}
	half := spec(never, probe("good", "sleep"), nothing) // its first container runs already
	failed := func(s *resourcev1.SandboxStatus) bool {
		return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	}
	cases := []struct {
		name, cause string
		spec        *resourcev1.SandboxSpec
	}{
		{"no-command", "/not/there", spec(never, nothing)},
		{"half", "/not/there", half},
		{"no-platform", "linux/", spec(never, &resourcev1.ContainerSpec{Name: "c", Image: other})},
	}
	for round := range 3 {
		var uids []string
		begun := time.Now()
		for _, c := range cases {
			for i := range 2 {
				uids = append(uids, ensure(t, b, fmt.Sprintf("%s-%d", c.name, i), c.spec))
			}
		}
		for i := range 2 {
			uids = append(uids, abandon(t, b, fmt.Sprintf("abandoned-%d", i), stalled))
		}
		for i, c := range cases {
			for _, uid := range uids[2*i : 2*i+2] {
				got := await(t, b, uid, c.name+" failed", failed)
				if !strings.Contains(got.GetMessage(), c.cause) {
					t.Errorf("%s: got message %q, want the cause: %s", c.name, got.GetMessage(), c.cause)
				}
			}
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("round %d: it took %v to say why all failed, want 30 s at most", round, took)
		}
		// A boot that failed holds nothing but its record and output, also before it
		// is removed, and one that waits for its image has no more.
		bed.Eventually(t, waitLong, "nothing left of failed boots", func(context.Context) (bool, string) {
			left := b.SandboxRemains()
			return len(left.Shims)+len(left.Links)+len(left.Cgroups)+len(b.Workloads()) == 0, sprint(left)
		})
		removeAll(t, b, uids...)
		settled(t, b)
	}
	// All addresses are free: as many sandboxes run at once.
	var uids []string
	for i := range 13 {
		uids = append(uids, ensure(t, b, fmt.Sprintf("fine-%d", i), spec(always, probe("c", "sleep"))))
	}
	for _, uid := range uids {
		await(t, b, uid, "running", running)
	}
	removeAll(t, b, uids...)
	settled(t, b)
}

// abandon asks for a sandbox whose image never comes, and leaves after 300 ms.
func abandon(t *testing.T, b *bed.Bed, name, image string) string {
	t.Helper()
	uid := newUID()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	s := spec(never, &resourcev1.ContainerSpec{Name: "c", Image: image})
	r := &sandboxhostv1.EnsureSandboxRequest{Uid: uid, Name: name, Generation: 1, Manager: "local", Spec: s}
	if _, err := b.Host().EnsureSandbox(ctx, r); err != nil {
		t.Logf("%s: %v", name, err) // the wish may not have been accepted in time
	}
	pull := b.StartCLI("--node-socket", b.HostSocket(), "image", "pull", image)
	<-ctx.Done()
	if err := pull.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := pull.Wait(); err == nil {
		t.Errorf("%s: the image came", name)
	}
	return uid
}
