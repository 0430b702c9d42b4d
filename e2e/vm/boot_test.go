//go:build vm

package vm_test

import (
	"strconv"
	"testing"
)

// A reboot ends sandboxes in order; they run again after it, and of the life before
// nothing is left.
func TestShort_RebootRunsSandboxesAgain(t *testing.T) {
	n := ready(t)
	n.run("stays", "--memory 64MiB", "count 1s")
	before := n.await("stays", "to run", sandbox.running)
	n.must(n.reboot())
	n.waitReady() // the target is enabled: nobody starts it
	after := n.await("stays", "to run again", func(s sandbox) bool { return s.running() && s.Status.Attempt != before.Status.Attempt })
	if was, now := number(before), number(after); now != was+1 {
		t.Errorf("it runs in attempt %d, was in %d", now, was)
	}
	if got := n.line("cat " + after.group() + "/memory.max"); got != "67108864" {
		t.Errorf("its limit is %q", got)
	}
	if said := n.agent.run(patience, "journalctl --no-pager --boot=-1 --unit=staddle-drain.service | grep DRAIN_STEP_DONE"); said.code != 0 {
		t.Errorf("the shutdown did not end them in order: %s", n.ok("journalctl --no-pager --boot=-1 --unit=staddle-drain.service"))
	}
	if groups := n.line("find " + slice + " -mindepth 1 -maxdepth 1 -type d ! -name shims | wc -l"); groups != "1" {
		t.Errorf("there are groups of %s sandboxes", groups)
	}
}

func number(s sandbox) int {
	attempt, err := strconv.Atoi(s.Status.Attempt)
	if err != nil {
		return -1
	}
	return attempt
}
