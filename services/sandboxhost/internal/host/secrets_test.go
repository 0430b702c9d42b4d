package host_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/secret"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// vault has the values of secrets once they are set.
type vault struct {
	set     chan struct{} // closed when they are
	gone    bool          // the coordinator
	fetches atomic.Int64
	going   atomic.Int64
	got     atomic.Bool // by the sandbox
}

func (v *vault) Ready(id.Sandbox, *resourcev1.SandboxSpec) bool { return v.got.Load() }

func (v *vault) Fetch(ctx context.Context, _ id.Sandbox, _ *resourcev1.SandboxSpec, tell func(secret.Answer)) {
	v.fetches.Add(1)
	v.going.Add(1)
	defer v.going.Add(-1)
	if v.gone {
		tell(secret.Answer{Sentence: "connection refused"})
	}
	tell(secret.Answer{Missing: true, Sentence: "there is no secret db"})
	select {
	case <-v.set:
		v.got.Store(true)
	case <-ctx.Done():
	}
}

func inBubbleWith(t *testing.T, v *vault, f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v.set = make(chan struct{})
		n := newNode(t)
		n.secrets = v
		n.start()
		f(n)
		n.kill()
		if v.going.Load() != 0 {
			t.Error("somebody fetches on after the host has ended")
		}
	})
}

func refers(commands ...string) *resourcev1.SandboxSpec {
	spec := wishFor(host.ManagerCluster, commands...).GetSpec()
	spec.Containers[0].Env = []*resourcev1.EnvironmentVariable{{Name: "P", Secret: &resourcev1.SecretReference{Name: "db", Key: "password"}}}
	return spec
}

// A sandbox waits for its secrets with the reason, is started when they are there, and
// needs nobody for another attempt.
func TestHost_WaitsForSecrets(t *testing.T) {
	v := &vault{}
	inBubbleWith(t, v, func(n *node) {
		w, other := wishFor(host.ManagerCluster, "sleep"), wishFor(host.ManagerCluster, "sleep")
		w.Spec, other.Name = refers("sleep"), "other"
		n.ensure(w)
		n.ensure(other)
		n.await(w.GetUid(), "waiting", func(s state) bool {
			return s.GetStatus().GetReason() == host.ReasonSecretMissing && s.GetStatus().GetPhase() == pending &&
				strings.Contains(s.GetStatus().GetMessage(), "there is no secret db")
		})
		n.awaitPhase(other.GetUid(), running, 1)
		close(v.set)
		n.awaitPhase(w.GetUid(), running, 1)
		n.await(w.GetUid(), "no reason any more", func(s state) bool { return s.GetStatus().GetReason() == "" })
		if err := n.engine.End(id.Sandbox(w.GetUid()), "a", engine.Exit{Code: 1}); err != nil {
			n.t.Fatal(err)
		}
		n.awaitPhase(w.GetUid(), running, 2)
		if got := v.fetches.Load(); got != 1 {
			n.t.Errorf("fetched %d times, want once", got)
		}
	})
}

// One that is removed or stopped while it waits is fetched for no more.
func TestHost_WaitForSecretsEnds(t *testing.T) {
	v := &vault{gone: true}
	inBubbleWith(t, v, func(n *node) {
		w := wishFor(host.ManagerCluster, "sleep")
		w.Spec = refers("sleep")
		n.ensure(w)
		waiting := func(s state) bool { return s.GetStatus().GetReason() == host.ReasonSecretMissing }
		n.await(w.GetUid(), "waiting", waiting)
		w = proto.CloneOf(w)
		w.Generation, w.Spec.Desired = 2, resourcev1.DesiredState_DESIRED_STATE_STOPPED
		n.ensure(w)
		n.awaitPhase(w.GetUid(), stopped, 1)
		synctest.Wait()
		if v.going.Load() != 0 {
			n.t.Error("a stopped sandbox is fetched for")
		}
		if err := n.host.Remove(n.t.Context(), id.Sandbox(w.GetUid()), host.ManagerCluster); err != nil {
			n.t.Fatal(err)
		}
		n.await(w.GetUid(), "torn down", func(s state) bool { return s.GetStatus().GetTornDownAt() != nil })
	})
}

// A node alone has no secrets.
func TestHost_LocalSandboxesHaveNoSecrets(t *testing.T) {
	inBubble(t, func(n *node) {
		w := wishFor(host.ManagerLocal, "sleep")
		w.Spec = refers("sleep")
		if _, err := n.host.Ensure(n.t.Context(), w); fault.Reason(err) != "SECRETS_NEED_CLUSTER" {
			n.t.Errorf("got %v", err)
		}
	})
}
