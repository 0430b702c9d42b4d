package e2e

import (
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// TestNode_IMG5_MovedTag has a tag that means another image while sandboxes run of it:
// each goes on with its own, also after it has ended, the node's runtime was killed,
// garbage was collected and the registry is gone; a new one gets the new image.
func TestNode_IMG5_MovedTag(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	registry := serveOn(t, b.Listen(), nil)
	first, second := probeImage(t), larger(t, probeImage(t), 1<<20)
	ref := push(t, registry, first, "test/app:1")
	digest := func(s *resourcev1.SandboxStatus) string { return s.GetContainers()[0].GetImageDigest() }
	begin := func(name string) (string, *resourcev1.SandboxStatus) {
		t.Helper()
		c := &resourcev1.ContainerSpec{Name: "c", Image: ref, Args: []string{"sleep"}, PullPolicy: resourcev1.PullPolicy_PULL_POLICY_ALWAYS}
		uid := ensure(t, b, name, spec(always, c))
		return uid, await(t, b, uid, "running", running)
	}
	old, was := begin("old")
	old2, was2 := begin("old-2")
	old3, was3 := begin("old-3")
	push(t, registry, second, "test/app:1")
	young, is := begin("young")
	young2, is2 := begin("young-2")
	for _, c := range []struct {
		img v1.Image
		got string
	}{{first, digest(was)}, {first, digest(was2)}, {first, digest(was3)}, {second, digest(is)}, {second, digest(is2)}} {
		want, err := c.img.Digest()
		if err != nil || c.got != want.String() {
			t.Errorf("got digest %s, want %s, %v", c.got, want, err)
		}
	}
	registry.Close()
	if r := b.CLI("--node-socket", b.HostSocket(), "image", "import", cutArchive(t)); r.Code == 0 { // collects garbage
		t.Fatal("half an archive was imported")
	}
	b.OK("--node-socket", b.HostSocket(), "image", "prune")
	b.Kill("containerd")
	b.Kill("sandboxhost")
	b.WaitReady()
	for uid, before := range map[string]*resourcev1.SandboxStatus{old: was, young: is} {
		if err := syscall.Kill(int(before.GetContainers()[0].GetPid()), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		after := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
		if digest(after) != digest(before) {
			t.Errorf("it was made of %s and is made of %s now", digest(before), digest(after))
		}
	}
	if r := b.CLI("--node-socket", b.HostSocket(), "image", "rm", ref+"@"+digest(was)); r.Code == 0 {
		t.Error("an image that a sandbox is made of was removed")
	}
	removeAll(t, b, old, old2, old3, young, young2)
	settled(t, b)
}
