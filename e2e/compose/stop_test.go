//go:build compose

package compose

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/image"
)

// probeImage is a workload that says how it ended.
const probeImage = "staddle.local/probe:1"

// stopInOrder stops the container of a runner as a person does, while a sandbox is
// there that needs more than a moment to end.
func (s *stack) stopInOrder(t *testing.T) {
	s.loadProbe(t)
	const name, needs = "farewell", 8 * time.Second
	for _, args := range [][]string{
		{"disk", "create", name, "--node", runner},
		{"run", "-d", "--name", name, "--grace", "30s", "--disk", name + ":/data", probeImage, "--", name, "/data/said", needs.String()},
	} {
		if out, err := s.staddle(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	s.eventually(time.Minute, "it waits for its end", func() error {
		out, err := s.inside(runner, "staddle", "logs", name)
		if err == nil && !strings.Contains(out, "here") {
			return fmt.Errorf("it has said %q", out)
		}
		return err
	})
	id := s.container(runner)
	began := time.Now()
	s.docker("stop", "-t", "120", id) // docker itself knows nothing of what compose.yaml says
	if took := time.Since(began); took < needs || took > time.Minute {
		t.Errorf("the stop took %s, want more than the %s of the sandbox, and no minute", took, needs)
	}
	if code := s.docker("inspect", "-f", "{{.State.ExitCode}}", id); code != "0" {
		t.Errorf("the runner ended with %s", code)
	}
	s.docker("start", id)
	s.eventually(time.Minute, "the node is ready again", func() error { return s.nodeReady(runner) })
	said, err := s.inside(runner, "bash", "-c", "find /var/lib/staddle/storage -type f -name said -exec cat {} +")
	if err != nil || !strings.Contains(said, "asked") || !strings.Contains(said, "ended") {
		t.Errorf("it wrote %q (%v), want that it had its time", said, err)
	}
	s.eventually(time.Minute, "the sandbox of before runs again", func() error { _, err := s.alive(kept); return err })
	s.eventually(time.Minute, "it is removed", func() error { _, err := s.staddle("rm", name); return err })
	s.eventually(time.Minute, "its disk is removed", func() error { _, err := s.staddle("disk", "rm", name); return err })
}

// loadProbe gives the image to each runner.
func (s *stack) loadProbe(t *testing.T) {
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "probe"), filepath.Join(dir, "probe.tar")
	if err := image.Build("../cmd/probe", program); err != nil {
		t.Fatal(err)
	}
	img, err := image.FromProgram(program)
	if err == nil {
		err = image.WriteArchive(img, probeImage, archive)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{runner, other} {
		const there = "/usr/local/share/staddle/probe.tar"
		s.docker("cp", archive, s.container(node)+":"+there)
		if out, err := s.inside(node, "staddle", "image", "import", there); err != nil {
			t.Fatal(out, err)
		}
	}
}
