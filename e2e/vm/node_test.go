//go:build vm

package vm_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// patience is for what takes seconds elsewhere.
	patience = 5 * time.Minute
	// slice is where workloads and shims are.
	slice = "/sys/fs/cgroup/staddle.slice"
)

// node is the machine as one test sees it.
type node struct {
	*testing.T
	*machine
}

// ready returns the machine with the whole node up, on and booted if it was not.
func ready(t *testing.T) node {
	t.Helper()
	n := node{t, shared}
	t.Cleanup(func() {
		if t.Failed() && n.qemu != nil {
			t.Logf("journal:\n%s", n.journal(150))
			t.Logf("console:\n%s", n.console())
		}
	})
	if n.qemu == nil {
		n.must(n.on())
	}
	n.ok("systemctl start staddle.target staddle-workloads.service")
	n.waitReady()
	return n
}

func (n node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// journal is the end of what our units have said.
func (n node) journal(lines int) string {
	return n.agent.run(time.Minute, fmt.Sprintf("journalctl --no-pager --lines=%d --output=short-precise --unit='staddle*'", lines)).text
}

// ok runs a script on the machine that has to succeed, and returns what it said. After a
// failure the journal says why, which others would soon have filled.
func (n node) ok(script string) string {
	n.Helper()
	r := n.agent.run(patience, script)
	if r.code != 0 {
		n.Fatalf("%s: exit code %d\n%s\n%s", script, r.code, r.text, n.journal(40))
	}
	return r.text
}

// line is what a script said, without the end of the line.
func (n node) line(script string) string { n.Helper(); return strings.TrimSpace(n.ok(script)) }

func (n node) eventually(what string, ask func() (bool, string)) {
	n.Helper()
	n.must(until(patience, what, ask))
}

// waitReady waits until the cluster may give the node work.
func (n node) waitReady() {
	n.Helper()
	n.eventually("the node to be ready", func() (bool, string) {
		r := n.agent.run(time.Minute, "staddle status && staddle node ls")
		return r.code == 0 && strings.Contains(r.text, "READY"), r.text
	})
}

// sandbox is a record as the command line shows it to machines.
type sandbox struct {
	Name   string
	UID    string
	Status struct {
		Attempt    string
		Phase      string
		Message    string
		Containers []struct {
			PID      int
			OOMKills string `json:"oom_kills"`
			Exit     exit
		}
		Exits []exit
	}
}

// exit is how a container ended.
type exit struct {
	Code      int
	OOMKilled bool   `json:"oom_killed"`
	OOMKills  string `json:"oom_kills"`
	Unknown   bool
}

// sandboxes are all of the cluster, by name.
func (n node) sandboxes() (map[string]sandbox, error) {
	r := n.agent.run(time.Minute, "staddle ps -o json")
	if r.code != 0 {
		return nil, fmt.Errorf("list sandboxes: %s", r.text)
	}
	var list []sandbox
	if err := json.Unmarshal([]byte(r.text), &list); err != nil {
		return nil, fmt.Errorf("list sandboxes: %w: %s", err, r.text)
	}
	all := map[string]sandbox{}
	for _, s := range list {
		all[s.Name] = s
	}
	return all, nil
}

// await waits until a sandbox is as it should be, and returns it.
func (n node) await(name, what string, is func(sandbox) bool) sandbox {
	n.Helper()
	var found sandbox
	n.eventually("sandbox "+name+" "+what, func() (bool, string) {
		all, err := n.sandboxes()
		found = all[name]
		return err == nil && is(found), fmt.Sprintf("%+v %v", found, err)
	})
	return found
}

func (s sandbox) running() bool { return s.Status.Phase == "SANDBOX_PHASE_RUNNING" }

// group is the cgroup of its container.
func (s sandbox) group() string { return slice + "/" + strings.ToLower(s.UID) + "/main" }

// run makes a sandbox of the probe and waits until it runs. It is removed at the
// end of the test, after which nothing of it may be there.
func (n node) run(name, flags, args string) sandbox {
	n.Helper()
	before := n.traces()
	n.Cleanup(func() {
		n.remove(name)
		n.without(before)
	})
	n.start(name, flags, args)
	return n.await(name, "to run", sandbox.running)
}

// start asks for a sandbox and does not wait for it: the command line has limits
// that are made for machines of another speed.
func (n node) start(name, flags, args string) {
	n.Helper()
	n.ok("setsid staddle run --detach --name " + name + " " + flags + " " + probeImage + " -- " + args + " > /run/started 2>&1 &")
	n.await(name, "to be known", func(s sandbox) bool { return s.UID != "" })
}

// remove removes a sandbox and waits until its record has gone.
func (n node) remove(name string) {
	n.Helper()
	r := n.agent.run(patience, "staddle rm "+name)
	n.eventually("sandbox "+name+" to be gone", func() (bool, string) {
		all, err := n.sandboxes()
		_, there := all[name]
		return err == nil && !there, fmt.Sprint(all[name], err, r.text)
	})
}

// traces is all that sandboxes leave on a machine while they are there: cgroups,
// interfaces, mounts, pins, pipes, shims, bundles, layers.
func (n node) traces() []string {
	n.Helper()
	text := n.ok(`
		find ` + slice + ` -mindepth 1 -type d 2>/dev/null
		cat ` + slice + `/shims/cgroup.procs 2>/dev/null | sed 's/^/shim /'
		ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/'
		cut -d' ' -f2 /proc/mounts | grep staddle | sed 's/^/mount /'
		find /run/staddle/sandboxhost /run/staddle/shims -mindepth 1
		find /run/staddle/containerd/io.containerd.runtime.v2.task -mindepth 2
		find /var/lib/staddle/containerd/io.containerd.runtime.v2.task -mindepth 2
		find /var/lib/staddle/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots -mindepth 1 -maxdepth 1
		find /var/lib/staddle/sandboxhost/logs -mindepth 1 2>/dev/null
		nft list ruleset | grep -iE '10\.77\.0\.[0-9]+( |$)'
		true`)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return lines
}

// without waits until there is no trace that was not there before.
func (n node) without(before []string) {
	n.Helper()
	n.eventually("nothing to be left of a sandbox", func() (bool, string) {
		left := slices.DeleteFunc(n.traces(), func(s string) bool {
			return slices.Contains(before, s) || s == slice+"/shims" // made once
		})
		return len(left) == 0, strings.Join(left, "\n")
	})
}

// pids are the processes in the sandboxes.
func (n node) pids() string {
	n.Helper()
	return n.line("cat " + slice + "/*/*/cgroup.procs | sort -n | tr '\\n' ' '")
}
