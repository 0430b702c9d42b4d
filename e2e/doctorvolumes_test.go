package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
)

// Volumes take part: what is left of some that are gone goes, what is missing of one
// that is used is mounted again under the sandbox that runs, and a note that cannot be
// read is told with the reason, by whoever is asked. (ADO-4)
func TestDoctor_VolumesTakePart(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("disk", "create", "data")
	b.OK("run", "-d", "--name", "web", "--disk", "data:/data", bed.ProbeImage, "--", "sleep")
	awaitPhase(t, b, "web", "RUNNING")
	volume := diskPath(t, b)
	must(t, os.WriteFile(filepath.Join(volume, "file"), []byte("kept"), 0o644))
	uid := onHost(t, b, "web").GetUid()
	was := pids(await(t, b, uid, "running", running))
	wantFindings(t, "at first", examine(t, b), "", nil)

	attached, volumes := filepath.Join(b.Paths.Run(), "storage"), filepath.Join(b.Paths.Var("storage"), "volumes")
	mine := filepath.Join(attached, "mine")
	must(t, os.Mkdir(mine, 0o700))
	half := filepath.Join(volumes, ".removing-"+strings.ToLower(newUID()))
	must(t, os.MkdirAll(filepath.Join(half, "data"), 0o700))
	place := filepath.Join(attached, strings.ToLower(newUID()))
	must(t, os.Mkdir(place, 0o700))
	tool(t, "mount", "-t", "tmpfs", "staddle-e2e", place)
	tool(t, "umount", volume)
	want := []string{"left folder " + half, "left mount " + place, "missing mount " + volume}
	wantFindings(t, "planted", examine(t, b), "problem", want)
	wantFindings(t, "with fix", examine(t, b, "--fix"), "fixed", want)
	wantFindings(t, "after the fix", examine(t, b), "", nil)
	tool(t, "mountpoint", "-q", volume)
	if raw, err := os.ReadFile(filepath.Join(volume, "file")); err != nil || string(raw) != "kept" {
		t.Errorf("mounted again it has %q: %v", raw, err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("what is of others was touched: %v", err)
	}
	must(t, os.Remove(mine))
	samePIDs(t, b, uid, was)

	// A note that is garbled says so itself, and once it is put back all is well.
	note := filepath.Join(volumes, filepath.Base(volume), "volume.json")
	good, err := os.ReadFile(note)
	must(t, err)
	must(t, os.WriteFile(note, []byte("{garbled"), 0o600))
	b.Kill("storage-agent") // which asks for all of them again
	b.WaitReady()
	failed := func(says string) func(context.Context) (bool, string) {
		return func(context.Context) (bool, string) {
			out := b.OK("get", "disk")
			return strings.Contains(out, says), out
		}
	}
	bed.Eventually(t, waitLong, "the disk says why it failed", failed("volume.json cannot be read"))
	found := examine(t, b, "--fix")
	if len(found) != 1 || found[0].Kind != "volume" || found[0].State != "problem" || !strings.Contains(found[0].What, "volume.json cannot be read") {
		t.Errorf("found %+v, want the volume alone, with the reason", found)
	}
	samePIDs(t, b, uid, was)
	if raw, err := os.ReadFile(filepath.Join(volume, "file")); err != nil || string(raw) != "kept" {
		t.Errorf("a fix took the disk from under its user: %q, %v", raw, err)
	}
	must(t, os.WriteFile(note, good, 0o600))
	b.Kill("storage-agent")
	b.WaitReady()
	bed.Eventually(t, waitLong, "the disk is attached again", failed("ATTACHED"))
	wantFindings(t, "put back", examine(t, b), "", nil)
	samePIDs(t, b, uid, was)
	b.OK("delete", "sandbox", "web")
	settled(t, b)
}
