package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3/raftpb"

	"staddle.internal/kit/backoff"
)

// standPause is the time between two requests to stand: one that comes before the
// member has applied its own log is passed over.
const standPause = 5 * time.Millisecond

// stand has a member that is the whole cluster stand for election now, and returns
// when it leads. A member that finds no leader waits a random time of up to two
// election time-outs (two seconds), so that several do not stand against each other;
// one that has nobody beside it would wait for nothing, at each start. The request
// is the one with which a leader hands over to a member: the log decides as ever
// whether it may lead.
func stand(ctx context.Context, s *etcdserver.EtcdServer) error {
	id := uint64(s.MemberID())
	for s.Lead() != id {
		err := s.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id})
		if err != nil {
			return fmt.Errorf("stand for election as the only member: %w", err)
		}
		if err := backoff.Wait(ctx, standPause); err != nil {
			return err
		}
	}
	return nil
}
