package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"staddle.internal/e2e/bed"
	"staddle.internal/e2e/image"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// small starts a node whose durable data has so much room, with a sandbox that runs.
func small(t *testing.T, size string) (b *bed.Bed, beside string, before *resourcev1.SandboxStatus) {
	t.Helper()
	b = bed.New(t, bed.Options{
		Composition: "node", Disabled: nodeAlone,
		Node: "pressure: {disk_min_free: 1MiB, disk_min_free_percent: 0}\nimages: {gc: {high_percent: 0, min_free: 4MiB, min_age: 0s, import_grace: 1h}}",
	})
	b.PutStateOn(size)
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	beside = ensure(t, b, "beside", spec(always, probe("c", "sleep")))
	return b, beside, await(t, b, beside, "running", running)
}

// unharmed checks that what ran beside it still does, and that the node takes more.
func unharmed(t *testing.T, b *bed.Bed, beside string, before *resourcev1.SandboxStatus) {
	t.Helper()
	if got := await(t, b, beside, "running still", running); got.GetAttempt() != before.GetAttempt() {
		t.Errorf("what ran beside it is in attempt %d, was in %d", got.GetAttempt(), before.GetAttempt())
	}
	more := ensure(t, b, "more", spec(always, probe("c", "sleep")))
	await(t, b, more, "running", running)
	removeAll(t, b, beside, more)
	settled(t, b)
}

// TestNode_IMG4_ImportFillsTheDisk imports an archive that is larger than the disk,
// which is seen only midway.
func TestNode_IMG4_ImportFillsTheDisk(t *testing.T) {
	b, beside, before := small(t, "160m")
	tar := filepath.Join(t.TempDir(), "large.tar")
	if err := image.WriteArchive(larger(t, probeImage(t), 200<<20), "staddle.local/large:1", tar); err != nil {
		t.Fatal(err)
	}
	room := free(t, b)
	for _, way := range []string{"the first time", "again"} {
		r := b.CLI("--node-socket", b.HostSocket(), "image", "import", tar)
		if r.Code != 1 || !strings.Contains(r.Stderr, "the disk is full") || !strings.Contains(r.Stderr, "free on the filesystem of") {
			t.Errorf("import %s: exit code %d, want 1 with the figures\n%s", way, r.Code, r.Stderr)
		}
		bed.Eventually(t, time.Minute, "what came in part is gone", func(context.Context) (bool, string) {
			now := free(t, b)
			return now > room-5<<20, fmt.Sprintf("%d of %d bytes are free", now, room)
		})
	}
	if list := b.OK("--node-socket", b.HostSocket(), "image", "ls"); strings.Contains(list, "large") {
		t.Errorf("half an image is listed:\n%s", list)
	}
	unharmed(t, b, beside, before)
}

// crowded adds a layer of so many empty files to an image.
func crowded(t *testing.T, img v1.Image, count int) v1.Image {
	t.Helper()
	files := map[string][]byte{}
	for i := range count {
		files[fmt.Sprint("many-", i)] = nil
	}
	return withFiles(t, img, files)
}

// TestNode_IMG4_ImageUsesUpTheInodes has a sandbox ask again and again for an image with
// more files than the disk can have, though it has room for every byte.
func TestNode_IMG4_ImageUsesUpTheInodes(t *testing.T) {
	b, beside, before := small(t, "400m,nr_inodes=5000")
	registry := newSlow()
	close(registry.goOn) // it only counts
	ref := push(t, serveOn(t, b.Listen(), registry.wrap), crowded(t, probeImage(t), 6000), "test/crowded")
	inodes := func() int64 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(b.Paths.Var(""), &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Ffree)
	}
	room := inodes()
	uid := ensure(t, b, "crowded", spec(always, &resourcev1.ContainerSpec{Name: "c", Image: ref, Args: []string{"sleep"}}))
	full := func(s *resourcev1.SandboxStatus) bool {
		return strings.Contains(s.GetMessage(), "the disk is full") && strings.Contains(s.GetMessage(), "inodes")
	}
	await(t, b, uid, "says that the disk is full", full)
	bed.Eventually(t, time.Minute, "it is tried again", func(context.Context) (bool, string) {
		asked := registry.asked()
		for _, n := range asked {
			if n >= 2 {
				return true, ""
			}
		}
		return false, sprint(asked)
	})
	await(t, b, uid, "says so again", full)
	removeAll(t, b, uid)
	bed.Eventually(t, time.Minute, "what came in part is gone", func(context.Context) (bool, string) {
		now := inodes()
		return now > room-100, fmt.Sprintf("%d of %d inodes are free", now, room)
	})
	unharmed(t, b, beside, before)
}
