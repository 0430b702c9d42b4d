package command_test

import (
	"testing"
)

func TestWait_ForEachOfItsGoals(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	want(t, cli(t, c.flags("wait", "web")...), 0, "web")
	want(t, cli(t, c.flags("wait", "--for", "running", "web")...), 0, "web")
	want(t, cli(t, c.flags("describe", "web")...), 0, "Name:", "web", "RUNNING")
	want(t, cli(t, c.flags("describe", "web", "-o", "yaml")...), 0, "name: web")
	if got := cli(t, c.flags("wait", "--for", "stopped", "--timeout", "100ms", "web")...); got.code == 0 {
		t.Errorf("one that runs is waited for as stopped: %+v", got)
	}
	want(t, cli(t, c.flags("stop", "web")...), 0)
	want(t, cli(t, c.flags("wait", "--for", "stopped", "web")...), 0, "web")
	if got := cli(t, c.flags("wait", "web")...); got.code == 0 {
		t.Errorf("one that was stopped is waited for: %+v", got)
	}
	want(t, cli(t, c.flags("rm", "web")...), 0)
	want(t, cli(t, c.flags("wait", "--for", "removed", "web")...), 0)
	if got := cli(t, c.flags("wait", "web")...); got.code == 0 {
		t.Errorf("one that is not there is waited for: %+v", got)
	}
	if got := cli(t, c.flags("wait", "--for", "redy", "web")...); got.code != 2 {
		t.Errorf("a goal that is not known: %+v", got)
	}
}
