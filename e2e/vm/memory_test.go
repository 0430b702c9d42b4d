//go:build vm

package vm_test

import "testing"

// LIF-5 on version 2: whom the kernel ends for memory is told, and whom it did not
// end is not. The kernel's own count is next to it.
func TestShort_KillsForMemoryAreTold(t *testing.T) {
	n := ready(t)
	const limits = "--restart never --memory 64MiB"
	feeder := n.run("feeder", limits, "feed 200000000")
	n.await("feeder", "to have lost a child and go on", func(s sandbox) bool {
		return s.running() && s.Status.Containers[0].OOMKills == "1"
	})
	if got := n.line("grep -w oom_kill " + feeder.group() + "/memory.events"); got != "oom_kill 1" {
		t.Errorf("the kernel counts %q", got)
	}
	before := n.traces()
	t.Cleanup(func() {
		n.remove("eater")
		n.without(before)
	})
	n.start("eater", limits, "eat 200000000")
	eater := n.await("eater", "to have ended", func(s sandbox) bool { return len(s.Status.Exits) > 0 })
	if e := eater.Status.Exits[0]; e.Code != 137 || !e.OOMKilled || e.OOMKills != "1" {
		t.Errorf("the main process ended with %+v", e)
	}
}
