package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// cycles is how many sandboxes come and go while processes are killed.
const cycles = 16

// TestNode_LIF2_NothingLeaksUnderKills lets sandboxes come and go, some with a command
// that is not there, while sandboxhost and containerd are killed at random moments.
// In the end there is what there was before.
func TestNode_LIF2_NothingLeaksUnderKills(t *testing.T) {
	b, _ := alone(t, bed.Options{Supervisor: "  backoff: {initial: 20ms, cap: 200ms}"})
	before, err := b.Containerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	k := newKiller(b, nil, seed, []string{"sandboxhost", "sandboxhost", "sandboxhost", "containerd"})
	ctx, stop := context.WithCancel(t.Context())
	var kills sync.WaitGroup
	kills.Go(func() { k.run(ctx) })
	var work sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range cycles {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			comeAndGo(t, b, i)
			k.finished()
		})
	}
	work.Wait()
	stop()
	kills.Wait()
	t.Logf("%d kills: %v", len(k.killed), k.killed)
	b.WaitReady()
	settled(t, b)
	bed.Eventually(t, time.Minute, "containerd holds what it did before", func(ctx context.Context) (bool, string) {
		after, err := b.Containerd(ctx)
		return err == nil && slices.Equal(after, before), fmt.Sprintf("%v: before %v, now %v", err, before, after)
	})
}

// comeAndGo makes one sandbox and removes it, each asked until it is accepted.
func comeAndGo(t *testing.T, b *bed.Bed, i int) {
	uid := newUID()
	s := spec(always, probe("one", "sleep"), probe("two", "count", "5ms"))
	if i%4 == 3 {
		s.Containers[1].Command = []string{"/not/there"}
	}
	repeat := func(what string, do func(ctx context.Context) error) {
		bed.Eventually(t, time.Minute, what, func(ctx context.Context) (bool, string) {
			err := do(ctx)
			return err == nil, fmt.Sprint(err)
		})
	}
	repeat("sandbox accepted", func(ctx context.Context) error {
		_, err := b.Host().EnsureSandbox(ctx, &sandboxhostv1.EnsureSandboxRequest{
			Uid: uid, Name: fmt.Sprintf("chaos-%d", i), Generation: 1, Manager: "local", Spec: s,
		})
		return err
	})
	if i%3 != 0 { // the others are removed wherever they are
		await(t, b, uid, "running or failed once", func(st *resourcev1.SandboxStatus) bool {
			return running(st) || st.GetAttempt() > 1 || strings.Contains(st.GetReason(), "FAILED")
		})
	}
	repeat("removal accepted", func(ctx context.Context) error {
		_, err := b.Host().RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: "local"})
		return err
	})
	await(t, b, uid, "torn down", func(st *resourcev1.SandboxStatus) bool { return st.GetTornDownAt() != nil })
	repeat("forgotten", func(ctx context.Context) error {
		_, err := b.Host().ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: uid, Manager: "local"})
		return err
	})
}
