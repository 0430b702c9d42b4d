//go:build vm

package vm_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// processes are those that systemd keeps.
var processes = []string{"containerd", "coordinator", "clusteraccess", "storage", "sandboxhost", "storage-agent", "sandbox-agent", "presence"}

// What the rest stands on: version 2 alone, a systemd that keeps the fd store of a
// stopped service, all processes up.
func TestShort_NodeIsReadyOnVersion2Alone(t *testing.T) {
	n := ready(t)
	if got := n.line("stat -fc %T /sys/fs/cgroup; grep -c ' cgroup ' /proc/mounts || true"); got != "cgroup2fs\n0" {
		t.Errorf("the cgroups are %q", got)
	}
	if got := n.line("systemctl show --value -p FileDescriptorStorePreserve staddle-sandboxhost"); got != "yes" {
		t.Errorf("the fd store is kept: %q", got)
	}
	if got := n.line("systemctl show --value -p ActiveState staddle.slice"); got != "inactive" {
		t.Errorf("systemd knows staddle.slice, which is %s", got)
	}
	if failed := n.ok("systemctl list-units --failed --no-legend; journalctl -b -p err --no-pager -q --unit='staddle*'"); failed != "" {
		t.Errorf("failed:\n%s", failed)
	}
}

// A limit that is asked for is in the kernel, in the one group of the container,
// and stays through all that systemd does to groups.
func TestShort_LimitsAreInTheKernelAndStay(t *testing.T) {
	n := ready(t)
	s := n.run("limited", "--memory 64MiB --pids 50 --cpu 0.5", "count 1s")
	want := map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "50", "cpu.max": "50000 100000"}
	check := func(when string) {
		t.Helper()
		for file, value := range want {
			if got := n.line("cat " + s.group() + "/" + file); got != value {
				t.Errorf("%s, %s is %q, not %q", when, file, got, value)
			}
		}
	}
	check("at first")
	if procs := n.line("cat " + s.group() + "/cgroup.procs"); procs != strconv.Itoa(s.Status.Containers[0].PID) {
		t.Errorf("in the group are %q, the container is process %d", procs, s.Status.Containers[0].PID)
	}
	before := n.pids()
	n.ok("systemctl daemon-reload && systemctl daemon-reexec && systemctl daemon-reload")
	// A unit that comes and goes makes systemd look at the controllers that it lets down from the root.
	n.ok("systemd-run --quiet --wait -p MemoryMax=100M -p CPUWeight=50 -p IOWeight=50 -p AllowedCPUs=0 true")
	check("after systemd read its units anew")
	if after := n.pids(); after != before {
		t.Errorf("workloads were processes %s, are %s", before, after)
	}
}

// The output of a workload is whole, and its processes the same, whatever is killed
// or restarted.
func TestLife_EveryKillAndRestart(t *testing.T) {
	n := ready(t)
	s := n.run("counter", "--memory 64MiB", "count 200ms")
	before := n.pids()
	attempt := s.Status.Attempt
	for _, p := range processes {
		for how, command := range map[string]string{
			"killed":    "systemctl kill --kill-whom=main --signal=KILL staddle-" + p,
			"restarted": "systemctl restart staddle-" + p,
		} {
			t.Run(p+" "+how, func(t *testing.T) {
				n := node{t, n.machine}
				pid := "systemctl show --value -p MainPID staddle-" + p
				old := n.line(pid)
				n.ok(command)
				n.eventually(p+" to be another process", func() (bool, string) {
					now := n.line(pid)
					return now != old && now != "0", now
				})
				n.waitReady()
				if after := n.pids(); after != before {
					t.Errorf("workloads were processes %s, are %s", before, after)
				}
			})
		}
	}
	n.ok("systemctl stop staddle-sandboxhost.socket staddle-sandboxhost && systemctl start staddle-sandboxhost.socket staddle-sandboxhost")
	n.waitReady()
	if after := n.pids(); after != before {
		t.Errorf("workloads were processes %s, are %s", before, after)
	}
	if now := n.await("counter", "to run", sandbox.running); now.Status.Attempt != attempt {
		t.Errorf("it runs in attempt %s, was in %s", now.Status.Attempt, attempt)
	}
	n.whole("counter")
}

// whole requires that the output of a sandbox that counts has neither gap nor
// repetition, and goes on.
func (n node) whole(name string) {
	n.Helper()
	count := func() int {
		lines := strings.Fields(n.ok("staddle logs " + name))
		for i, line := range lines {
			if line != strconv.Itoa(i) {
				n.Fatalf("output of %s: line %d is %q", name, i, line)
			}
		}
		return len(lines)
	}
	first := count()
	n.eventually("output of "+name+" to go on", func() (bool, string) {
		now := count()
		return now > first, fmt.Sprint(now, " lines")
	})
}
