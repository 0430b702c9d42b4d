package lead_test

import (
	"context"
	"log/slog"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/run"

	"staddle.internal/services/coordinator/internal/etcd/etcdtest"
	"staddle.internal/services/coordinator/internal/lead"
)

// A leader that stops leaves nothing behind for which the next would have to wait.
func TestLeader_GivesTheLeaseBack(t *testing.T) {
	client := etcdtest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan error, 1)
	work := run.Member{Name: "work", Run: func(ctx context.Context, ready func()) error {
		ready()
		close(leads)
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	leader := lead.New(lead.Config{Key: "/l", Name: "one"}, lead.Deps{
		Log: slog.New(slog.DiscardHandler), Etcd: func() *clientv3.Client { return client }, Work: []run.Member{work},
	})
	go func() { ended <- leader.Run(ctx, func() {}) }() // ends with ctx, and is waited for
	<-leads
	stop()
	<-ended
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(leases.Leases); n != 0 {
		t.Errorf("%d leases are left, want none", n)
	}
}
