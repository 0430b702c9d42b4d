package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/stats"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// statsPage is how many sandboxes are in one message: with 16 containers each it stays
	// well below what a message may have.
	statsPage = 100
	// statsInterval is between two rounds where nobody says.
	statsInterval = 5 * time.Second
)

// statsSource answers what is used; a *stats.Collector.
type statsSource interface {
	Ask(ctx context.Context, uid id.Sandbox) (stats.Round, error)
}

type statsServer struct {
	sandboxhostv1.UnimplementedStatsServiceServer
	source statsSource
}

// RegisterStats serves what s reads on a server.
func RegisterStats(on grpc.ServiceRegistrar, s statsSource) {
	sandboxhostv1.RegisterStatsServiceServer(on, &statsServer{source: s})
}

// GetStats reads once.
func (s *statsServer) GetStats(ctx context.Context, req *sandboxhostv1.GetStatsRequest) (*sandboxhostv1.GetStatsResponse, error) {
	if token := req.GetPageToken(); token != "" {
		if _, err := id.ParseSandbox(token); err != nil {
			return nil, fault.New(fault.Invalid, "page token %q: is none of this host; begin without one", token)
		}
	}
	round, err := s.source.Ask(ctx, id.Sandbox(req.GetUid()))
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = statsPage
	}
	page, next := statsPageOf(round.Sandboxes, req.GetPageToken(), size)
	return &sandboxhostv1.GetStatsResponse{Node: round.Node, Sandboxes: page, NextPageToken: next}, nil
}

// statsPageOf cuts the page after a uid out of an ordered list.
func statsPageOf(all []*sandboxhostv1.SandboxStats, after string, size int) (page []*sandboxhostv1.SandboxStats, next string) {
	at, found := slices.BinarySearchFunc(all, after, func(s *sandboxhostv1.SandboxStats, uid string) int { return strings.Compare(s.GetUid(), uid) })
	if found {
		at++
	}
	page = all[at:min(at+size, len(all))]
	if at+len(page) < len(all) {
		next = page[len(page)-1].GetUid()
	}
	return page, next
}

// WatchStats reads at once and in an interval.
func (s *statsServer) WatchStats(req *sandboxhostv1.WatchStatsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchStatsResponse]) error {
	interval := statsInterval
	if req.GetInterval() != nil {
		interval = req.GetInterval().AsDuration()
	}
	ctx := stream.Context()
	clock := time.NewTicker(interval) // one that is not taken in time is skipped
	defer clock.Stop()
	for first := true; ; first = false {
		round, err := s.source.Ask(ctx, id.Sandbox(req.GetUid()))
		if err != nil && (first || !errors.Is(err, fault.NotFound)) {
			return err
		}
		if err := sendRound(stream, round); err != nil {
			return err
		}
		select {
		case <-clock.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func sendRound(stream grpc.ServerStreamingServer[sandboxhostv1.WatchStatsResponse], round stats.Round) error {
	node := round.Node
	for after := ""; ; node = nil {
		page, next := statsPageOf(round.Sandboxes, after, statsPage)
		if err := stream.Send(&sandboxhostv1.WatchStatsResponse{Node: node, Sandboxes: page, Complete: next == ""}); err != nil {
			return err
		}
		if next == "" {
			return nil
		}
		after = next
	}
}
