package coordinator

import (
	"context"
	"fmt"
	"os"

	"staddle.internal/kit/run"

	"staddle.internal/services/coordinator/internal/collect"
	"staddle.internal/services/coordinator/internal/lead"
	"staddle.internal/services/coordinator/internal/schedule"
	"staddle.internal/services/coordinator/internal/store"
)

// leader runs the loops of which the cluster has one each.
func (s *parts) leader() *lead.Leader {
	place := schedule.NewLoop(schedule.Deps{Store: lateStore{s.store}, Mirror: s.mirror, Log: s.Log})
	finish := collect.NewLoop(collect.Config{LostGrace: s.cfg.LostGrace.Std()}, collect.Deps{Store: lateStore{s.store}, Mirror: s.mirror, Log: s.Log})
	return lead.New(lead.Config{
		Alone: s.backend.Embedded(),
		Key:   s.cfg.Etcd.Prefix + "l",
		Name:  fmt.Sprintf("%s/%d", s.Config.Name, os.Getpid()),
	}, lead.Deps{Log: s.Log, Etcd: s.backend.Client, Work: []run.Member{
		{Name: "schedule", Run: place.Run},
		{Name: "collect", Run: finish.Run},
	}})
}

// lateStore hands calls to a store that is made only when etcd answers: members
// are built before, and started after.
type lateStore struct{ get func() *store.Store }

func (l lateStore) Commit(ctx context.Context, c store.Change) (uint64, error) {
	return l.get().Commit(ctx, c)
}

func (l lateStore) Load(ctx context.Context, emit func(store.Entry)) (uint64, error) {
	return l.get().Load(ctx, emit)
}

func (l lateStore) Follow(ctx context.Context, revision uint64, emit func([]store.Entry)) error {
	return l.get().Follow(ctx, revision, emit)
}

func (l lateStore) Incarnation(ctx context.Context) (string, error) { return l.get().Incarnation(ctx) }

func (l lateStore) BeginTerm(ctx context.Context) (string, error) { return l.get().BeginTerm(ctx) }

func (l lateStore) Current(ctx context.Context) (uint64, error) { return l.get().Current(ctx) }

func (l lateStore) Newest(ctx context.Context) (uint64, error) { return l.get().Newest(ctx) }
