//go:build systemd

package systemd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/rpc"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
)

// processes are those that the target keeps, in an order of start.
var processes = []string{"containerd", "coordinator", "clusteraccess", "storage", "sandboxhost", "storage-agent", "sandbox-agent", "presence"}

func unit(process string) string { return "staddle-" + process + ".service" }

// node is the machine as one test sees it.
type node struct {
	*testing.T
	*machine
}

// ready returns the machine with the whole node up, which it may be already.
func ready(t *testing.T) node {
	t.Helper()
	n := node{t, shared}
	t.Cleanup(func() {
		if t.Failed() && n.boot != nil {
			t.Logf("journal:\n%s", n.run("journalctl", "--no-pager", "--lines=150", "--unit=staddle*", "--output=short-precise").text)
		}
	})
	n.ok("systemctl", "start", "staddle.target", "staddle-workloads.service")
	n.waitReady()
	return n
}

// ok runs a command on the machine that has to succeed, and returns what it said.
func (n node) ok(args ...string) string {
	n.Helper()
	r := n.run(args...)
	if r.code != 0 {
		n.Fatalf("%s: exit code %d\n%s", strings.Join(args, " "), r.code, r.text)
	}
	return r.text
}

func (n node) eventually(what string, ask func() (bool, string)) {
	n.Helper()
	if err := until(time.Minute, what, ask); err != nil {
		n.Fatal(err)
	}
}

// waitReady waits until the cluster may give the node work.
func (n node) waitReady() {
	n.Helper()
	n.eventually("the node to be ready", func() (bool, string) {
		p, err := n.presence()
		if err != nil {
			return false, err.Error()
		}
		return p.GetReady() && p.GetSessionId() != 0, p.String()
	})
}

// presence asks the node how it is. The socket is reached through process 1, whose
// mount namespace it is in.
func (n node) presence() (*presencev1.Presence, error) {
	conn, err := rpc.Dial(fmt.Sprintf("/proc/%d/root/run/staddle/presence.sock", n.boot.init), rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(n.Context(), 2*time.Second)
	defer cancel()
	r, err := presencev1.NewPresenceServiceClient(conn).GetPresence(ctx, &presencev1.GetPresenceRequest{})
	return r.GetPresence(), err
}

// show is one property of a unit.
func (n node) show(unit, property string) string {
	n.Helper()
	return strings.TrimSpace(n.ok("systemctl", "show", "--value", "--property="+property, unit))
}

// pid is the main process of a unit as the machine numbers it.
func (n node) pid(process string) string { return n.show(unit(process), "MainPID") }

// runSandbox makes a sandbox run the probe, in the place of one of that name.
func (n node) runSandbox(name string, args ...string) {
	n.Helper()
	n.run("staddle", "rm", name)
	n.ok(append([]string{"staddle", "run", "--detach", "--name", name, "--memory", "64MiB", "--pids", "50", "--cpu", "0.5", probeImage, "--"}, args...)...)
	n.waitRunning(name)
	n.Cleanup(func() {
		if r := n.run("staddle", "rm", name); r.code != 0 {
			n.Errorf("remove sandbox %s: %s", name, r.text)
		}
	})
}

func (n node) waitRunning(name string) {
	n.Helper()
	n.eventually("sandbox "+name+" to run", func() (bool, string) {
		line := n.sandbox(name)
		return strings.Contains(line, "RUNNING"), line
	})
}

// sandbox is the line of a sandbox in the list.
func (n node) sandbox(name string) string {
	for line := range strings.Lines(n.run("staddle", "ps").text) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}

// attempt is the number of a sandbox's life.
func (n node) attempt(name string) int {
	n.Helper()
	header, _, _ := strings.Cut(n.run("staddle", "ps").text, "\n")
	at := slices.Index(strings.Fields(header), "ATTEMPT")
	fields := strings.Fields(n.sandbox(name))
	if at < 0 || at >= len(fields) {
		n.Fatalf("sandbox %s is listed as %q under %q", name, fields, header)
	}
	attempt, err := strconv.Atoi(fields[at])
	if err != nil {
		n.Fatalf("sandbox %s is listed as %q", name, fields)
	}
	return attempt
}

// workloads are the processes in the sandboxes, as this side numbers them.
func (n node) workloads() []string {
	var pids []string
	for path, text := range n.groupFiles("cgroup.procs") {
		if !strings.Contains(path, "/shims/") {
			pids = append(pids, strings.Fields(text)...)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// groupFiles reads the files of these names in all cgroups of workloads.
func (n node) groupFiles(names ...string) map[string]string {
	n.Helper()
	files := map[string]string{}
	for _, dir := range hierarchies() {
		top := filepath.Join(dir, n.name, "staddle.slice")
		if _, err := os.Stat(top); err != nil {
			continue // nothing has run yet
		}
		err := filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
			if err != nil || !slices.Contains(names, filepath.Base(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			files[path] = string(text)
			return err
		})
		if err != nil {
			n.Fatal(err)
		}
	}
	return files
}

// count is how far the output of a sandbox that counts has come; it fails the test
// if anything of it is missing or doubled.
func (n node) count(name string) int {
	n.Helper()
	lines := strings.Fields(n.ok("staddle", "logs", name))
	for i, line := range lines {
		if line != strconv.Itoa(i) {
			n.Fatalf("output of %s: line %d is %q", name, i, line)
		}
	}
	return len(lines)
}

// unharmed runs f while a sandbox counts, and requires that it does not notice.
func (n node) unharmed(f func()) {
	n.Helper()
	before, said := n.workloads(), n.count("counter")
	f()
	n.waitReady()
	if after := n.workloads(); len(before) == 0 || !slices.Equal(before, after) {
		n.Fatalf("workloads were processes %v, are %v", before, after)
	}
	n.eventually("output to go on", func() (bool, string) {
		now := n.count("counter")
		return now > said, fmt.Sprintf("%d lines, %d before", now, said)
	})
}
