package e2e

import (
	"context"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
)

// What happened to a sandbox that crashes again and again is told in a few lines that
// count, also after the host was killed and after the sandbox is gone.
func TestEvents_TellWhatHappened(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "web", spec(always, probe("main", "exit", "3")))
	events := func(args ...string) string {
		return b.OK(append([]string{"--node-socket", b.HostSocket(), "events"}, args...)...)
	}
	last := ""
	bed.Eventually(t, waitLong, "its third end is counted", func(context.Context) (bool, string) {
		last = events("web")
		for line := range strings.Lines(last) {
			if f := strings.Fields(line); strings.Contains(line, "CONTAINER_EXITED") && len(f) > 4 && f[3] != "1" && f[3] != "2" {
				return true, ""
			}
		}
		return false, last
	})
	for _, reason := range []string{"ACCEPTED", "IMAGE_PRESENT", "PREPARING", "STARTED", "ended with code 3", "BACK_OFF"} {
		if !strings.Contains(last, reason) {
			t.Errorf("%s is missing in\n%s", reason, last)
		}
	}
	if warnings := events("web", "--warnings"); strings.Contains(warnings, "STARTED") || !strings.Contains(warnings, "BACK_OFF") {
		t.Errorf("warnings are\n%s", warnings)
	}
	described := b.OK("--node-socket", b.HostSocket(), "describe", "web")
	if _, list, _ := strings.Cut(described, "\nEVENT "); !strings.Contains(list, "CONTAINER_EXITED") || strings.Count(list, "\n") > 11 {
		t.Errorf("it is described without its last events, or with more than ten:\n%s", described)
	}
	b.Kill("sandboxhost")
	b.WaitReady()
	if got := events(uid); !strings.Contains(got, "ACCEPTED") {
		t.Errorf("after the host was killed there is only\n%s", got)
	}
	b.OK("--node-socket", b.HostSocket(), "rm", "web")
	if got := events(uid); !strings.Contains(got, "TORN_DOWN") {
		t.Errorf("of the removed one there is only\n%s", got)
	}
}
