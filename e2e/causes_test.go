package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// What is behind a step that cannot succeed is told by its reason, with what to do about it, also after the
// host was killed; and nothing of it is left once that was done.
func TestCauses_ExplainSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "data")
	b, _ := alone(t, bed.Options{Node: fmt.Sprintf("allow_host_paths: [%s]", dir)})
	c := probe("main", "sleep")
	c.HostMounts = []*resourcev1.HostMount{{HostPath: missing, Path: "/data"}}
	uid := ensure(t, b, "web", spec(always, c))
	local := []string{"--node-socket", b.HostSocket()}
	says := func(when string) {
		t.Helper()
		bed.Eventually(t, waitLong, "it is explained "+when, func(context.Context) (bool, string) {
			r := b.CLI(append(local, "explain", "web")...)
			all := strings.Contains(r.Stdout, "failed step (HOST_PATH_MISSING)") && strings.Contains(r.Stdout, "BACK_OFF") &&
				strings.Contains(r.Stdout, missing) && strings.Contains(r.Stdout, "next: make on the node what the cause names")
			return r.Code == 7 && all, r.Stdout + r.Stderr
		})
	}
	says("at first")
	if got := b.OK(append(local, "describe", "web")...); !strings.Contains(got, "HOST_PATH_MISSING") {
		t.Errorf("it is described without its cause:\n%s", got)
	}
	b.Kill("sandboxhost")
	b.WaitReady()
	says("by the next host")
	must(t, os.Mkdir(missing, 0o700))
	if s := await(t, b, uid, "running", running); s.GetCauseReason() != "" || s.GetReason() != "" {
		t.Errorf("one that runs says %s, %s: %s", s.GetReason(), s.GetCauseReason(), s.GetMessage())
	}
	bed.Eventually(t, waitLong, "all is well", func(context.Context) (bool, string) {
		r := b.CLI(append(local, "explain", "web")...)
		return r.Code == 0 && !strings.Contains(r.Stdout, "HOST_PATH_MISSING"), r.Stdout + r.Stderr
	})
	remove(t, b, uid)
}
