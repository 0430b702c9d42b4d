//go:build vm

package vm_test

import (
	"strings"
	"testing"
)

// The power goes in the middle of a start. After the boot the sandbox, which was
// accepted, runs; its record and everything on the machine fit together.
func TestPower_CutInAStart(t *testing.T) {
	for _, at := range []struct{ name, seen string }{
		{"namespaces made", "ls -d /run/staddle/sandboxhost/[0-9]*"},
		{"process started", "cat " + slice + "/[0-9]*/*/cgroup.procs | grep -q ."},
	} {
		t.Run(at.name, func(t *testing.T) {
			n := ready(t)
			before := n.traces()
			t.Cleanup(func() {
				n.remove("cut")
				n.without(before)
			})
			n.ok("setsid staddle run --detach --name cut --memory 64MiB " + probeImage + " -- count 1s > /run/started 2>&1 &\n" + wait(at.seen))
			n.powerCut()
			s := n.await("cut", "to run", sandbox.running)
			if got := n.line("cat " + s.group() + "/memory.max"); got != "67108864" {
				t.Errorf("its limit is %q", got)
			}
			if groups := n.line("ls -d " + slice + "/[0-9]*"); groups != strings.TrimSuffix(s.group(), "/main") {
				t.Errorf("there are groups %q", groups)
			}
			n.whole("cut")
		})
	}
}

// The power goes in the middle of a removal. After the boot it goes on to its end by
// itself, and nothing starts again.
func TestPower_CutInARemoval(t *testing.T) {
	for _, at := range []struct{ name, args, seen string }{
		{"asked to end", "deaf", "staddle ps | grep -E 'REMOVING|STOPPING'"},
		{"processes gone", "count 1s", "! cat " + slice + "/[0-9]*/*/cgroup.procs | grep -q ."},
	} {
		t.Run(at.name, func(t *testing.T) {
			n := ready(t)
			before := n.traces()
			n.start("cut", "--grace 60s", at.args)
			n.await("cut", "to run", sandbox.running)
			n.ok("setsid staddle rm cut > /run/removed 2>&1 &\n" + wait(at.seen))
			n.powerCut()
			n.await("cut", "to be gone", func(s sandbox) bool { return s.UID == "" })
			n.without(before)
		})
	}
}

// powerCut takes the power away, gives it back, and requires that the node comes up
// by itself with its notes as they were.
func (n node) powerCut() {
	n.Helper()
	n.must(n.cut())
	n.must(n.on())
	n.waitReady() // the target is enabled: nobody starts it
	if r := n.agent.run(patience, "journalctl -b --no-pager -q --unit='staddle*' | grep 'set aside'"); r.code == 0 {
		n.Errorf("notes were damaged:\n%s", r.text)
	}
}

// wait is a script that returns as soon as a condition holds.
func wait(condition string) string {
	return "until { " + condition + "; } > /dev/null 2>&1; do sleep 0.02; done"
}
