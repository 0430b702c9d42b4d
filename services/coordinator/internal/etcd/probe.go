package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// ReasonFull is the reason of the error when the store takes no more writes.
const ReasonFull = "STORE_FULL"

// probeLimit bounds one look at the state.
const probeLimit = 3 * time.Second

// relieveLimit bounds giving space back: it rewrites the whole file.
const relieveLimit = 5 * time.Minute

// Probe asks the state a linearised question and for its alarms. It returns nil
// if it can be read and written.
func Probe(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if _, err := client.Get(ctx, "probe", clientv3.WithCountOnly()); err != nil {
		return fault.New(fault.Unavailable, "read etcd: %w", err)
	}
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return fault.New(fault.Unavailable, "list alarms of etcd: %w", err)
	}
	full := func(a *etcdserverpb.AlarmMember) bool { return a.GetAlarm() == etcdserverpb.AlarmType_NOSPACE }
	switch {
	case slices.ContainsFunc(alarms.Alarms, full):
		return fault.WithReason(fault.New(fault.Unavailable, "store full: etcd has reached its quota"), ReasonFull)
	case len(alarms.Alarms) > 0:
		return fault.New(fault.Unavailable, "etcd has the alarm %s", alarms.Alarms[0].GetAlarm())
	}
	return nil
}

// Relieve makes room in a full etcd inside this process, which nobody else can
// reach: it drops the history, gives the space back and lets writes in again. It
// fails where the records themselves are too many. An etcd cluster belongs to
// whoever runs it and is left alone.
func (b *Backend) Relieve(ctx context.Context) error {
	if !b.Embedded() {
		return fault.New(fault.Unavailable, "relieve etcd: compact, defragment and disarm it by etcdctl")
	}
	ctx, cancel := context.WithTimeout(ctx, relieveLimit)
	defer cancel()
	now, err := b.client.Get(ctx, "probe", clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("relieve etcd: read revision: %w", err)
	}
	if _, err := b.client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		b.deps.Log.Warn("history kept", logging.Err(err)) // that revision was compacted before: go on
	}
	file := b.server.Server.Backend()
	if err := file.Defrag(); err != nil {
		return fmt.Errorf("relieve etcd: defragment: %w", err)
	}
	if size := file.Size(); size > b.cfg.Quota/10*9 {
		return fault.New(fault.Exhausted, "relieve etcd: the records alone take %d of %d bytes: delete some", size, b.cfg.Quota)
	}
	if _, err := b.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("relieve etcd: disarm: %w", err)
	}
	b.deps.Log.Warn("store relieved")
	return nil
}
