package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
)

// tell tells a component of mode "orders" what to do, and returns when it has
// heard it.
func (n *node) tell(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.root, "order-"+name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		n.t.Fatal(err)
	}
	n.eventually(func() bool { _, err := os.Stat(path); return err != nil }, func() string { return name + " to hear " + text })
}

// SUP-8: as the first process of a container it reaps what loses its parent, and
// still knows how each of its own ended.
func TestSupervisor_SUP8_ReapsOrphansAsFirstProcessAndLosesNoExit(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "orders"}, part{name: "b", mode: "orphans"})
	n.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	n.start()
	n.untilState("b", ready) // two hundred orphans are on their way
	want := n.untilState("a", ready).GetStarts()
	for _, tt := range []struct{ order, exit string }{
		{"exit 3", "exit code 3"}, {"exit 7", "exit code 7"},
		{"signal " + strconv.Itoa(int(syscall.SIGSEGV)), "exit code 2"}, // Go makes a crash of its own of it
		{"signal " + strconv.Itoa(int(syscall.SIGKILL)), "signal killed"},
	} {
		n.tell("a", tt.order)
		want++
		got := n.until("a", "started once more", func(c *supervisorv1.Component) bool { return c.GetStarts() == want && c.GetState() == ready })
		if got.GetLastExit() != tt.exit {
			t.Errorf("after %q got %q, want %q", tt.order, got.GetLastExit(), tt.exit)
		}
	}
	n.eventually(func() bool { return len(n.zombies()) == 0 }, func() string { return fmt.Sprintf("zombies %v to be reaped", n.zombies()) })
	n.reexeced() // which the first process can do as well
	n.tell("a", "exit 5")
	n.until("a", "ended with 5", func(c *supervisorv1.Component) bool { return c.GetLastExit() == "exit code 5" && c.GetState() == ready })
	if code := n.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0: a stop is passed on", code)
	}
	for _, bad := range []string{"no child processes", "not awaited", "orphans not reaped"} {
		if strings.Contains(n.out.String(), bad) {
			t.Errorf("the supervisor said %q:\n%s", bad, n.out)
		}
	}
}

// zombies are the dead children of the supervisor.
func (n *node) zombies() []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		n.t.Fatal(err)
	}
	var pids []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(n.cmd.Process.Pid) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				n.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// SUP-2: a process that lives but cannot do its job is shown as not ready, with its
// reason, and left alone: to start it again would not help.
func TestSupervisor_SUP2_NotReadyIsShownAndLeftAlone(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "orders"}, part{name: "b", mode: "serve", more: "needs: [a]"})
	n.start()
	n.untilState("b", ready)
	before := n.graph()
	n.tell("a", "block its coordinator does not answer")
	n.until("a", "not ready with its reason", func(c *supervisorv1.Component) bool {
		return c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_NOT_READY && strings.Contains(c.GetReason(), "its coordinator does not answer")
	})
	// Longer than a process that gives no answer would be left to live.
	end := time.Now().Add(8 * time.Second)
	n.eventually(func() bool { return time.Now().After(end) }, func() string { return "time" })
	for name, c := range n.graph() {
		if c.GetPid() != before[name].GetPid() || c.GetStarts() != 1 {
			t.Errorf("got %v, want %s left alone", c, name)
		}
	}
	n.tell("a", "unblock")
	if c := n.untilState("a", ready); c.GetStarts() != 1 {
		t.Errorf("got %v, want it ready again in the same process", c)
	}
}

// Each wrong component is named with what is wrong, and the others run.
func TestSupervisor_WrongComponentsHoldUpNobody(t *testing.T) {
	n := newNode(t, "  start_timeout: 3s\n  stop_timeout: 1s\n",
		part{name: "good", mode: "serve"},
		part{name: "failing", mode: "fail"},
		part{name: "never", mode: "never ready"},
		part{name: "chatty", mode: "chatty", more: "start_timeout: 20s"})
	text, err := os.ReadFile(filepath.Join(n.root, "etc/node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	n.write(string(text) + "    - {name: missing, command: [/does/not/exist]}\n    - {name: folder, command: [/tmp]}\n")
	n.start()
	n.untilState("good", ready)
	for name, reason := range map[string]string{
		"missing": "/does/not/exist: no such file",
		"folder":  "/tmp: permission denied",
		"failing": "exit code 1",
		"never":   "not ready within 3s: recovering 3 volumes",
	} {
		n.until(name, "backing off because of "+reason, func(c *supervisorv1.Component) bool {
			return c.GetState() == supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF && strings.Contains(c.GetReason(), reason)
		})
	}
	n.untilState("chatty", ready)
	const most = 3*8<<20 + 1<<20 // what is set aside, what may follow, and a little
	n.eventually(func() bool { return n.said("chatty") < most }, func() string { return fmt.Sprintf("%d bytes of output to be bounded", n.said("chatty")) })
	if c := n.graph()["good"]; c.GetStarts() != 1 || c.GetState() != ready {
		t.Errorf("got %v, want it untouched", c)
	}
}

// said is the size of all that is kept of a component's output.
func (n *node) said(name string) int64 {
	files, err := filepath.Glob(filepath.Join(n.root, "var/supervisor/logs", name+".log*"))
	if err != nil {
		n.t.Fatal(err)
	}
	var sum int64
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// LIF-4: a boot that fails is cleaned up after, although it failed.
func TestSupervisor_LIF4_FailedBootLeavesNothing(t *testing.T) {
	n := newNode(t, "", part{name: "a", mode: "helper"}, part{name: "b", mode: "fail", more: "needs: [a]"})
	n.start("--fail-fast")
	if code := n.wait(); code != 1 {
		t.Errorf("got exit code %d, want 1", code)
	}
	for _, text := range n.lines("helpers") {
		if helper, err := strconv.Atoi(text); err != nil || alive(helper) {
			t.Errorf("got helper %s alive (%v)", text, err)
		}
	}
	paths := config.Paths{Root: n.root}
	for _, pattern := range []string{
		filepath.Join(paths.Run(), "*.sock"), filepath.Join(paths.Run(), "supervisor", "*.pid"), paths.SocketSpares(),
		filepath.Join("/sys/fs/cgroup", paths.ComponentCgroup()), filepath.Join("/sys/fs/cgroup/unified", paths.ComponentCgroup()),
	} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("got %v left (%v)", left, err)
		}
	}
}
