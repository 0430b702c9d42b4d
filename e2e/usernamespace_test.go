package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// A user namespace on a whole node, whose host is not root: no two sandboxes have the
// same ids, the commands of probes are in it, it outlives the death of everything, and
// nothing of it is left.
func TestMachine_UserNamespace(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	const many = 3
	first := config.DefaultNode().UserNamespaces.FirstID
	var uids []string
	var before []*resourcev1.SandboxStatus
	seen := map[string]bool{}
	for i := range many {
		server := probe("c", "serve", "7000")
		server.ReadinessProbe = &resourcev1.Probe{
			Check:  &resourcev1.Probe_Exec{Exec: &resourcev1.ExecAction{Command: []string{"/probe", "exit", "0"}}},
			Period: durationpb.New(time.Second),
		}
		s := spec(always, server, probe("d", "sleep"))
		s.UserNamespace = true
		uids = append(uids, ensure(t, b, fmt.Sprintf("apart-%d", i), s))
	}
	for _, uid := range uids {
		got := await(t, b, uid, "ready", isReady)
		before = append(before, got)
		ids := idsOf(t, pids(got)["c"])
		if ids != idsOf(t, pids(got)["d"]) {
			t.Errorf("its containers have ids %s and %s", ids, idsOf(t, pids(got)["d"]))
		}
		var inside, outside, count uint32
		if n, err := fmt.Sscan(ids, &inside, &outside, &count); n != 3 || err != nil || inside != 0 || outside < first || outside%config.IDRange != 0 || count != config.IDRange {
			t.Errorf("its ids are %q", ids)
		}
		if seen[ids] {
			t.Errorf("two sandboxes have the ids %s", ids)
		}
		seen[ids] = true
	}
	for _, who := range []string{"sandboxhost", config.ContainerdName, "sandboxhost"} {
		b.Kill(who)
	}
	b.WaitReady()
	for i, uid := range uids {
		after := await(t, b, uid, "ready again", isReady)
		if after.GetAttempt() != 1 || pids(after)["c"] != pids(before[i])["c"] || !seen[idsOf(t, pids(after)["c"])] {
			t.Errorf("got %v, had %v", after, before[i])
		}
	}
	for _, uid := range uids {
		remove(t, b, uid)
	}
	b.OK("run", "-d", "--name", "plain", "--user-namespace", bed.ProbeImage, "--", "sleep")
	r := b.CLI("run", "-d", "--name", "wrong", "--user-namespace", "--network", "host", bed.ProbeImage, "--", "sleep")
	if r.Code == 0 || !strings.Contains(r.Stderr, "user namespace") {
		t.Errorf("with the node's network: got code %d: %s", r.Code, r.Stderr)
	}
	b.OK("rm", "plain")
	settled(t, b)
}

// idsOf is the map of users of a process.
func idsOf(t *testing.T, pid uint32) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

// Secrets can be read by whom they are for in a user namespace as well.
func TestMachine_SecretsInAUserNamespace(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	setSecret(t, b, "db", "password", "hunter2")
	apply(t, b, strings.Replace(sums("apart"), "spec:\n", "spec:\n  user_namespace: true\n", 1))
	printed(t, b, "apart", 1, "hunter2")
	b.OK("rm", "apart")
	settled(t, b)
}
