package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// SEC-8 with a disk: a node that was removed while it was cut off has had its
// sandboxes and leases ended without its word. Let in again, it ends what it still
// has, gives the disk back, and the next holder finds the data.
func TestNode_SEC8_RemovedWithADiskAndLetInAgain(t *testing.T) {
	far, b, _ := joined(t, bed.Options{Node: shortSession})
	withDisk := func(name string) string {
		return fmt.Sprintf("kind: Sandbox\nname: %s\nspec:\n  desired: RUNNING\n  containers:\n"+
			"    - {name: main, image: %q, args: [sleep], disks: [{disk: data, path: /data}]}\n", name, bed.ProbeImage)
	}
	far.OK("disk", "create", "data")
	apply(t, far, withDisk("first"))
	awaitPhase(t, far, "first", "RUNNING")
	first := onHost(t, b, "first").GetStatus()
	if err := os.WriteFile(filepath.Join(diskPath(t, b), "file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}

	b.Cut()
	bed.Eventually(t, time.Minute, "the coordinator says that the node is lost", func(context.Context) (bool, string) {
		p := get(t, far, resourcev1.Kind_KIND_NODE, bed.NodeName).GetNode().GetPlacement()
		return p.GetLostSince() != nil, p.String()
	})
	far.OK("delete", "node", bed.NodeName)
	bed.Eventually(t, waitLong, "its sandbox is gone, and the disk free", func(context.Context) (bool, string) {
		holder := get(t, far, resourcev1.Kind_KIND_DISK, "data").GetDisk().GetPlacement().GetHolder()
		r := far.CLI("get", "sandbox", "first")
		return holder == "" && r.Code != 0, holder + r.Stdout
	})
	apply(t, far, "kind: Node\nname: "+bed.NodeName+"\nspec: {}\n---\n"+withDisk("second"))
	if pid := pids(first)["main"]; !bed.Alive(int(pid)) {
		t.Fatal("a removal ended a sandbox on a node that could not hear of it")
	}

	b.Mend()
	b.WaitNodeReady()
	awaitPhase(t, far, "second", "RUNNING")
	if onHost(t, b, "first") != nil || bed.Alive(int(pids(first)["main"])) {
		t.Error("the sandbox of the removed node still runs beside the next holder of its disk")
	}
	second := onHost(t, b, "second").GetStatus()
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/data/file", pids(second)["main"]))
	if err != nil || string(got) != "kept" {
		t.Errorf("the next holder sees %q, %v; want what was there", got, err)
	}
	far.OK("delete", "sandbox", "second")
	bed.Eventually(t, waitLong, "the disk is released and removed", func(context.Context) (bool, string) {
		r := far.CLI("disk", "rm", "data")
		return r.Code == 0 || strings.Contains(r.Stderr, "no such record"), r.Stderr
	})
	settled(t, b)
}
