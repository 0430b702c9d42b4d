package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"staddle.internal/e2e/bed"
)

// An operator of another machine reads and follows what sandboxes write, over a kill of
// the host and until they are gone; nobody else does.
func TestLogs_LOG7_ThroughTheGateway(t *testing.T) {
	far, b := afar(t)
	apply(t, far, strings.ReplaceAll(sandboxYAML("web", "bursts, '10', 10ms, '3'", ""), "name: web", "name: web\nlabels: {app: shop}")+
		strings.ReplaceAll(sandboxYAML("db", `say, "first\nsecond\n", "third\n"`, "  restart_policy: NEVER"), "name: db", "name: db\nlabels: {app: shop}"))
	awaitPhase(t, far, "web", "RUNNING")
	awaitPhase(t, far, "db", "STOPPED")
	if r := far.CLI("logs", "db"); r.Code != 0 || r.Stdout != "first\nsecond\n" || r.Stderr != "third\n" {
		t.Errorf("got code %d, %q, %q", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLI("logs", "-l", "app=shop", "--stream", "stdout"); r.Code != 0 || !strings.Contains(r.Stdout, "db/main second\n") || !strings.Contains(r.Stdout, "web/main 00") {
		t.Errorf("by their labels: got code %d, %.300q, %s", r.Code, r.Stdout, r.Stderr)
	}
	if r := b.CLI("--node-socket", b.HostSocket(), "logs", "-l", "app=shop", "--stream", "stderr"); r.Code != 0 || r.Stderr != "db/main third\n" {
		t.Errorf("of the node by their labels: got code %d, %q, %q", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLI("describe", "db"); r.Code != 0 || !strings.Contains(r.Stdout, "\nEVENT ") || !strings.Contains(r.Stdout, "STARTED ") {
		t.Errorf("described with its events: got code %d, %s, %s", r.Code, r.Stdout, r.Stderr)
	}
	pki := far.Paths.Etc() + "/pki/"
	if r := far.CLI("logs", "db", "--cert", pki+"node.crt", "--key", pki+"node.key"); r.Code == 0 || r.Stdout != "" {
		t.Errorf("as a node: got code %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	f := far.Begin("logs", "-f", "web")
	goesOn := func() {
		t.Helper()
		n := strings.Count(f.Stdout(), "\n")
		bed.Eventually(t, waitLong, "it goes on", func(context.Context) (bool, string) {
			now := strings.Count(f.Stdout(), "\n")
			return now > n+3, fmt.Sprint(n, " then ", now)
		})
	}
	goesOn()
	b.Kill("sandboxhost")
	goesOn()
	b.Kill("clusteraccess")
	goesOn()
	numberedFrom(t, "the follower", f.Stdout(), 0)
	far.OK("rm", "web")
	if r := f.Wait(); r.Code != 0 {
		t.Errorf("the follower ended with %d: %s", r.Code, r.Stderr)
	}
}
