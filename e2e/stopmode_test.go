package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
)

// A supervisor that is the first process of a container ends with all that runs on the
// node: asked to end by a signal, it has the sandboxes ended first, each with its time,
// and their disks unmounted.
func TestMachine_SignalDrainsWhereThatIsConfigured(t *testing.T) {
	b, supervisor := machine(t, bed.Options{Supervisor: "  stop_mode: drain\n  drain_timeout: 60s"})
	b.OK("disk", "create", "data")
	b.OK("run", "-d", "--name", "tidy", "--grace", "30s", "--disk", "data:/data", bed.ProbeImage, "--", "farewell", "/data/said", "3s")
	awaitPhase(t, b, "tidy", "RUNNING")
	bed.Eventually(t, waitLong, "it waits for its end", func(context.Context) (bool, string) {
		said := b.CLI("logs", "tidy").Stdout
		return strings.Contains(said, "here"), said
	})
	must(t, supervisor.Signal(syscall.SIGTERM))
	bed.Eventually(t, time.Minute, "the runner is gone", runnerGone(b))
	if alive := b.Workloads(); len(alive) > 0 {
		t.Errorf("workloads live: %v", alive)
	}
	if disks, err := filepath.Glob(filepath.Join(b.Paths.Run(), "storage", "*")); err != nil || len(disks) > 0 {
		t.Errorf("mounted are %v (%v)", disks, err)
	}
	var said string
	must(t, filepath.WalkDir(b.Paths.Var("storage"), func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == "said" {
			var text []byte
			text, err = os.ReadFile(path)
			said += string(text)
		}
		return err
	}))
	if !strings.Contains(said, "asked") || !strings.Contains(said, "ended") {
		t.Errorf("it wrote %q, want that it had its time", said)
	}
}
