//go:build compose

// Package compose tests the development stack of deploy/compose as a person meets
// it: its scripts, the command line outside of all containers, and docker.
//
// It needs a docker daemon, and is built only with the tag "compose": make
// compose-test. It must never touch a stack of another project.
package compose

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runner is the node of the stack to which things happen, and other one beside it.
const runner, other = "node1", "node2"

// kept is the sandbox that all steps are about.
const kept = "kept"

// One story, because a start from nothing takes longer than all the rest.
func TestStack(t *testing.T) {
	s := newStack(t)
	s.step("ComesUpWithASandboxOnEachRunner", func(t *testing.T) {
		out := s.script("up.sh")
		for _, want := range []string{"Hello from sandbox hello at", "Hello from sandbox hello2 at", "(on " + runner, "(on " + other, "deploy/compose/staddle ps"} {
			if !strings.Contains(out, want) {
				t.Errorf("got %q, want the pages of two sandboxes, one on each runner, and what to try; %q is missing", out, want)
			}
		}
		if out, err := s.staddle("run", "-d", "--name", kept, "staddle.local/hello:1"); err != nil {
			t.Fatal(out, err)
		}
		s.eventually(time.Minute, "it runs", func() error { _, err := s.alive(kept); return err })
		if r, err := s.get("sandbox", kept); err != nil || r.Placement.Node != runner {
			t.Fatalf("it is on %q (%v), want the first of two that have as much to do", r.Placement.Node, err)
		}
	})
	s.step("UpAgainChangesNothing", func(t *testing.T) {
		before, was := s.life(kept), s.container(runner)
		s.script("up.sh")
		s.untouched(kept, before)
		if is := s.container(runner); is != was {
			t.Errorf("got container %s, want still %s", is, was)
		}
	})
	for _, how := range []string{"restart", "kill"} {
		for _, service := range []string{"etcd", "coordinator"} {
			s.step("SandboxesOutlive_"+how+"_of_"+service, func(*testing.T) {
				before := s.life(kept)
				s.again(how, service)
				s.untouched(kept, before)
				s.converges("after-" + how + "-" + service)
				s.eventually(time.Minute, "the node is ready", func() error { return s.nodeReady(runner) })
				s.untouched(kept, before)
			})
		}
	}
	s.step("SandboxesOutliveEveryProcess", s.killEveryProcess)
	s.step("NothingIsLeftUnreaped", func(*testing.T) { s.eventually(10*time.Second, "no zombie is left", s.zombies) })
	for _, how := range []string{"restart", "kill"} {
		s.step("SandboxesRunAgainAfter_"+how+"_of_the_runner", func(t *testing.T) { s.reboot(t, how) })
	}
	s.step("StopGivesSandboxesTheirTime", s.stopInOrder)
	s.step("DataOutlivesDown", func(t *testing.T) {
		before := s.life(kept)
		s.script("down.sh")
		s.script("up.sh")
		s.eventually(time.Minute, "it runs again", func() error {
			after, err := s.alive(kept)
			if err == nil && after.UID != before.UID {
				t.Fatalf("got %+v, want the sandbox of %+v", after, before)
			}
			return err
		})
	})
	s.step("DownLeavesNothing", s.leavesNothing)
}

// life is that of a sandbox which runs.
func (s *stack) life(name string) life {
	s.t.Helper()
	l, err := s.alive(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// again ends a service's container, in order or at once, and starts it.
func (s *stack) again(how, service string) {
	s.t.Helper()
	id := s.container(service)
	if how == "restart" {
		s.docker("restart", "-t", "60", id)
		return
	}
	s.docker("kill", id)
	s.docker("start", id)
}

// killEveryProcess kills each of the runner's processes, and containerd, one after
// the other.
func (s *stack) killEveryProcess(t *testing.T) {
	before := s.life(kept)
	all, err := s.components(runner)
	if err != nil || len(all) != 7 {
		t.Fatalf("got %v and %v, want containerd and six processes", all, err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if out, err := s.inside(runner, "bash", "-c", "kill -9 "+strconv.Itoa(all[name].PID)); err != nil {
			t.Fatal(out, err)
		}
		s.eventually(30*time.Second, name+" is ready again", func() error {
			now, err := s.components(runner)
			if c := now[name]; err == nil && (c.State != "COMPONENT_STATE_READY" || c.PID == all[name].PID) {
				return fmt.Errorf("%+v after process %d", c, all[name].PID)
			}
			return err
		})
		s.untouched(kept, before)
	}
	s.eventually(30*time.Second, "the node is ready", func() error { return s.nodeReady(runner) })
	s.converges("after-kills")
	s.untouched(kept, before)
}

// zombies returns an error that names the ended processes which nobody has waited
// for. The first process of a container inherits all orphans, such as shims.
func (s *stack) zombies() error {
	out, err := s.inside(runner, "bash", "-c", `for f in /proc/[0-9]*/stat; do read -r line <"$f" && echo "$line"; done 2>/dev/null; true`)
	if err != nil {
		return err
	}
	var found []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line[strings.LastIndex(line, ")")+1:], " Z 1 ") {
			found = append(found, line[:strings.LastIndex(line, ")")+1])
		}
	}
	if len(found) > 0 || out == "" {
		return fmt.Errorf("zombies of the first process: %v", found)
	}
	return nil
}

// reboot is to a runner what it is to a machine: every sandbox is a new attempt.
func (s *stack) reboot(t *testing.T, how string) {
	before := s.life(kept)
	s.again(how, runner)
	s.eventually(time.Minute, "the sandbox runs again", func() error {
		after, err := s.alive(kept)
		if err == nil && (after.UID != before.UID || after.Attempt <= before.Attempt) {
			return fmt.Errorf("got %+v after %+v", after, before)
		}
		return err
	})
	s.eventually(time.Minute, "the node is ready", func() error { return s.nodeReady(runner) })
	if health := s.docker("inspect", "-f", "{{.State.Health.Status}}", s.container(runner)); health == "unhealthy" {
		t.Errorf("got the container %s, want it healthy", health)
	}
}

// leavesNothing takes all down and looks for what is left, at docker and in the
// kernel.
func (s *stack) leavesNothing(t *testing.T) {
	var ids []string
	for _, service := range []string{"etcd", "coordinator", runner, other} {
		ids = append(ids, s.container(service))
	}
	s.script("down.sh", "--volumes")
	label := "label=com.docker.compose.project=" + os.Getenv("COMPOSE_PROJECT_NAME")
	for _, what := range [][]string{{"container", "ls", "-a"}, {"network", "ls"}, {"volume", "ls"}} {
		if left := s.docker(append(what, "-q", "--filter", label)...); left != "" {
			t.Errorf("docker still has a %s: %s", what[0], left)
		}
	}
	for _, id := range ids {
		groups, err := filepath.Glob("/sys/fs/cgroup/*/docker/" + id)
		more, moreErr := filepath.Glob("/sys/fs/cgroup/system.slice/docker-" + id + ".scope")
		if err != nil || moreErr != nil || len(groups)+len(more) > 0 {
			t.Errorf("control groups are left: %v %v (%v, %v)", groups, more, err, moreErr)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil || len(processes) == 0 {
		t.Fatalf("got %d processes (%v), want to see this one at least", len(processes), err)
	}
	for _, file := range processes {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		for _, id := range ids {
			if bytes.Contains(text, []byte(id)) {
				t.Errorf("a process is left: %s is in %s", file, text)
			}
		}
	}
}
