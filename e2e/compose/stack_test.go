//go:build compose

package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// commandLimit bounds one command. The longest builds images.
const commandLimit = 5 * time.Minute

// stack is the development stack of one project.
type stack struct {
	t    *testing.T // that of the step that runs now
	tree string     // the folder with deploy and bin
}

// newStack takes what an earlier run left down, and does so again at the end.
func newStack(t *testing.T) *stack {
	t.Helper()
	if os.Getenv("COMPOSE_PROJECT_NAME") == "" {
		t.Fatal("COMPOSE_PROJECT_NAME is not set: run make compose-test, which keeps clear of a stack that somebody works with")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, tree: filepath.Join(dir, "../..")}
	s.script("down.sh", "--volumes")
	t.Cleanup(func() {
		s.t = t
		if t.Failed() {
			s.tell()
		}
		s.script("down.sh", "--volumes")
	})
	return s
}

// step runs one part of the story; the rest makes no sense after one that failed.
func (s *stack) step(name string, do func(t *testing.T)) {
	whole := s.t
	ok := whole.Run(name, func(t *testing.T) {
		s.t = t
		do(t)
	})
	s.t = whole
	if !ok {
		whole.FailNow()
	}
}

// try runs a command and returns what it printed.
func (s *stack) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, out.Bytes(), said.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

func (s *stack) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *stack) script(name string, args ...string) string {
	s.t.Helper()
	return s.must(filepath.Join(s.tree, "deploy/compose", name), args...)
}

func (s *stack) docker(args ...string) string {
	s.t.Helper()
	return s.must("docker", args...)
}

// staddle is the command line, outside of all containers.
func (s *stack) staddle(args ...string) (string, error) {
	return s.try(filepath.Join(s.tree, "deploy/compose/staddle"), args...)
}

// container is the id of a service's container.
func (s *stack) container(service string) string {
	s.t.Helper()
	id := s.docker("container", "ls", "-a", "-q", "--no-trunc", "--filter", "label=com.docker.compose.project="+os.Getenv("COMPOSE_PROJECT_NAME"),
		"--filter", "label=com.docker.compose.service="+service)
	if id == "" || strings.Contains(id, "\n") {
		s.t.Fatalf("got containers %q of %s, want one", id, service)
	}
	return id
}

// inside runs a command in a service's container.
func (s *stack) inside(service string, command ...string) (string, error) {
	return s.try("docker", append([]string{"exec", s.container(service)}, command...)...)
}

// eventually asks until there is no error, and fails with the last one.
func (s *stack) eventually(limit time.Duration, what string, ask func() error) {
	s.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s; last: %v", limit, what, err)
		}
		<-tick.C
	}
}

// record is what the steps need of a sandbox's record, or of a node's.
type record struct {
	UID       string `json:"uid"`
	Placement struct {
		Node string `json:"node"`
	} `json:"placement"`
	Status struct {
		Phase      string   `json:"phase"`
		Attempt    int      `json:"attempt,string"`
		Addresses  []string `json:"addresses"`
		Containers []struct {
			PID int `json:"pid"`
		} `json:"containers"`
		Conditions []struct {
			Type  string `json:"type"`
			State string `json:"state"`
		} `json:"conditions"`
	} `json:"status"`
}

func (s *stack) get(kind, name string) (r record, err error) {
	out, err := s.staddle("get", kind, name, "-o", "json")
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(out), &r)
}

// life is what stays the same as long as nobody touches a sandbox.
type life struct {
	UID     string
	Attempt int
	PID     int
	Started string // by the clock of the kernel
}

// alive returns the life of a sandbox that runs and shows its page.
func (s *stack) alive(name string) (l life, err error) {
	r, err := s.get("sandbox", name)
	if err != nil {
		return l, err
	}
	if r.Status.Phase != "SANDBOX_PHASE_RUNNING" || len(r.Status.Addresses) == 0 || len(r.Status.Containers) != 1 {
		return l, fmt.Errorf("sandbox %s does not run: %+v", name, r.Status)
	}
	page, err := s.inside(r.Placement.Node, "curl", "-sSf", "--max-time", "5", "http://"+r.Status.Addresses[0]+":8080/")
	if err != nil {
		return l, err
	}
	if !strings.HasPrefix(page, "Hello from sandbox "+name) {
		return l, fmt.Errorf("got the page %q, want that of %s", page, name)
	}
	l = life{UID: r.UID, Attempt: r.Status.Attempt, PID: r.Status.Containers[0].PID}
	stat, err := s.inside(r.Placement.Node, "cat", fmt.Sprintf("/proc/%d/stat", l.PID))
	if err != nil {
		return l, err
	}
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 20 {
		return l, fmt.Errorf("got %q as the state of process %d", stat, l.PID)
	}
	l.Started = fields[19]
	return l, nil
}

// untouched fails if a sandbox is not in the same life any more.
func (s *stack) untouched(name string, want life) {
	s.t.Helper()
	s.eventually(30*time.Second, "sandbox "+name+" is seen to run", func() error {
		got, err := s.alive(name)
		if err == nil && got != want {
			s.t.Fatalf("got %s in the life %+v, want it untouched in %+v", name, got, want)
		}
		return err
	})
}

// nodeReady returns nil if the node may be given work.
func (s *stack) nodeReady(name string) error {
	r, err := s.get("node", name)
	if err != nil {
		return err
	}
	for _, c := range r.Status.Conditions {
		if c.Type == "Ready" && c.State == "CONDITION_STATE_TRUE" {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready: %+v", name, r.Status.Conditions)
}

// converges shows that a wish becomes true, from the command line to the kernel
// and back.
func (s *stack) converges(name string) {
	s.t.Helper()
	s.eventually(time.Minute, "the cluster takes a sandbox", func() error {
		_, err := s.get("sandbox", name)
		if err == nil {
			return nil
		}
		_, err = s.staddle("run", "-d", "--name", name, "--timeout", "20s", "staddle.local/hello:1")
		return err
	})
	s.eventually(time.Minute, "sandbox "+name+" runs", func() error {
		_, err := s.alive(name)
		return err
	})
	s.eventually(time.Minute, "sandbox "+name+" is removed", func() error {
		_, err := s.staddle("rm", name)
		return err
	})
}

// component is one process of a runner, as its supervisor knows it.
type component struct {
	Name  string `json:"name"`
	State string `json:"state"`
	PID   int    `json:"pid"`
}

func (s *stack) components(service string) (map[string]component, error) {
	out, err := s.inside(service, "staddle", "status", "-o", "json")
	var graph struct {
		Components []component `json:"components"`
	}
	if jsonErr := json.Unmarshal([]byte(out), &graph); jsonErr != nil {
		return nil, errors.Join(err, jsonErr) // it also fails, with the graph, while one is not ready
	}
	all := map[string]component{}
	for _, c := range graph.Components {
		all[c.Name] = c
	}
	return all, nil
}

// tell shows what the containers said last.
func (s *stack) tell() {
	for _, id := range strings.Fields(s.docker("container", "ls", "-a", "-q", "--filter", "label=com.docker.compose.project="+os.Getenv("COMPOSE_PROJECT_NAME"))) {
		out, err := exec.Command("docker", "logs", "--tail", "15", id).CombinedOutput()
		s.t.Logf("%s said (%v):\n%s", s.docker("inspect", "-f", "{{.Name}} {{.State.Status}}", id), err, out)
	}
}
