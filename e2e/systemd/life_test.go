//go:build systemd

package systemd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The first sandbox of a fresh machine comes from the archive that is installed
// with the units; nothing but systemd and the command line is needed for it.
func TestNode_StartsAndRunsTheFirstSandbox(t *testing.T) {
	n := ready(t)
	for _, p := range processes {
		if state := n.show(unit(p), "ActiveState"); state != "active" {
			t.Errorf("%s is %s", unit(p), state)
		}
		if p != "containerd" && n.show("staddle-"+p+".socket", "ActiveState") != "active" {
			t.Errorf("staddle-%s.socket is not active", p)
		}
	}
	n.ok("staddle", "image", "import", "/usr/local/share/staddle/hello.tar")
	n.ok("staddle", "run", "--detach", "--name", "hello", "staddle.local/hello:1")
	t.Cleanup(func() { n.ok("staddle", "rm", "hello") })
	n.waitRunning("hello")

	status := n.ok("staddle", "status") // fails unless all are ready
	for _, p := range processes[2:] {
		if !strings.Contains(status, p) {
			t.Errorf("%s is missing in the status without a supervisor:\n%s", p, status)
		}
	}
	// systemd must know nothing of the cgroup of the workloads: what it knows it resets.
	if got := n.show("staddle.slice", "ActiveState"); got != "inactive" {
		t.Errorf("staddle.slice is %s to systemd", got)
	}
}

func TestNode_SandboxOutlivesEveryRestart(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	for _, p := range processes {
		t.Run(p, func(t *testing.T) {
			n := node{t, n.machine}
			n.unharmed(func() {
				before := n.pid(p)
				n.ok("systemctl", "restart", unit(p))
				if after := n.pid(p); after == before || after == "0" {
					t.Errorf("process was %s, is %s", before, after)
				}
			})
		})
	}
}

func TestNode_SandboxOutlivesEveryKill(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	for _, p := range processes {
		t.Run(p, func(t *testing.T) {
			n := node{t, n.machine}
			n.unharmed(func() {
				before := n.pid(p)
				n.ok("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit(p))
				n.eventually(p+" to be up again", func() (bool, string) {
					pid, state := n.pid(p), n.show(unit(p), "ActiveState")
					return state == "active" && pid != before && pid != "0", state + " as process " + pid
				})
			})
		})
	}
}

// A process whose configuration is wrong is tried again and says why; the others
// do not notice, and once it is right it comes up by itself.
func TestNode_CrashLoopStaysAlone(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	const broken = "storage-agent"
	n.write("/etc/staddle/broken.yaml", "version: 1\nnoname: x\n")
	dropin := "/etc/systemd/system/" + unit(broken) + ".d/broken.conf"
	n.write(dropin, "[Service]\nExecStart=\nExecStart=/usr/local/lib/staddle/staddle-node "+broken+" --config /etc/staddle/broken.yaml\n")
	mend := func() {
		n.remove(dropin)
		n.ok("systemctl", "daemon-reload")
	}
	t.Cleanup(mend)
	n.ok("systemctl", "daemon-reload")
	pids := map[string]string{}
	for _, p := range processes {
		pids[p] = n.pid(p)
	}
	n.unharmed(func() {
		n.run("systemctl", "restart", "--no-block", unit(broken))
		n.eventually(broken+" to have been tried again", func() (bool, string) {
			tries := n.show(unit(broken), "NRestarts")
			return len(tries) > 1 || tries >= "5", tries
		})
		n.eventually("systemctl status to say what is wrong", func() (bool, string) {
			said := n.run("systemctl", "status", "--no-pager", "--lines=50", unit(broken)).text
			return strings.Contains(said, "broken.yaml:2: noname"), said
		})
		n.eventually("presence to name it", func() (bool, string) {
			p, err := n.presence()
			return err == nil && !p.GetReady() && strings.Contains(p.String(), broken), fmt.Sprint(p, err)
		})
		if r := n.run("staddle", "status"); r.code == 0 || !strings.Contains(r.text, broken) {
			t.Errorf("staddle status ended with %d:\n%s", r.code, r.text)
		}
		for _, p := range processes {
			if now := n.pid(p); p != broken && now != pids[p] {
				t.Errorf("%s was process %s, is %s", p, pids[p], now)
			}
		}
		mend()
	})
}

// SYS-3: what systemd does to its own cgroups, when it reads its units anew or is
// replaced itself, is not done to those of workloads.
func TestNode_SYS3_ReloadKeepsLimits(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	limits := func() map[string]string {
		return n.groupFiles("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max", "cpu.shares", "cpu.weight", "devices.list", "cpuset.cpus")
	}
	before := limits()
	if !strings.Contains(fmt.Sprint(before), "67108864") {
		t.Fatalf("the limit of memory is in no cgroup: %v", before)
	}
	n.unharmed(func() {
		for range 5 {
			n.ok("systemctl", "daemon-reload")
		}
		n.ok("systemctl", "daemon-reexec")
		n.ok("systemctl", "restart", unit("containerd"), unit("sandboxhost"))
	})
	after := limits()
	for path, was := range before {
		if after[path] != was {
			t.Errorf("%s was %q, is %q", path, was, after[path])
		}
	}
	if out := n.ok("staddle", "ps"); !strings.Contains(out, "RUNNING") {
		t.Errorf("after it:\n%s", out)
	}
}

func TestNode_TargetStopHarmsNoWorkload(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	n.unharmed(func() {
		n.ok("systemctl", "stop", "staddle.target")
		for _, p := range processes { // systemctl has waited for the target alone
			n.eventually(p+" to be stopped", func() (bool, string) {
				state := n.show(unit(p), "ActiveState")
				return state == "inactive", state
			})
		}
		n.ok("systemctl", "start", "staddle.target")
	})
}

// write puts a file on the machine.
func (n node) write(path, text string) {
	n.Helper()
	n.ok("mkdir", "-p", strings.TrimSuffix(path, "/"+path[strings.LastIndex(path, "/")+1:]))
	if err := os.WriteFile(n.path(path), []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

func (n node) remove(path string) {
	n.Helper()
	if err := os.RemoveAll(n.path(path)); err != nil {
		n.Error(err)
	}
}
