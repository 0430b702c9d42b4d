package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// network is what the network of its own adds to the start of a sandbox: address,
// interface and rules.
func (b *bench) network(ctx context.Context, n int) {
	const warm = 2
	var own, node []float64
	for i := range n + warm {
		for mode, took := range map[resourcev1.NetworkMode]*[]float64{
			resourcev1.NetworkMode_NETWORK_MODE_SANDBOX: &own, resourcev1.NetworkMode_NETWORK_MODE_HOST: &node,
		} {
			uid, d, err := b.startOf(ctx, func(s *resourcev1.SandboxSpec) { s.Network = mode })
			b.check(err)
			b.check(b.remove(ctx, uid))
			if i >= warm {
				*took = append(*took, ms(d))
			}
		}
	}
	b.add("create to RUNNING with a network of its own, p50", "ms", quantile(own, 0.5), quantile(node, 0.5), "<= that of the node + 15 ms")
}

// exec compares the first byte of a process begun inside a container with that by the
// client alone.
func (b *bench) exec(ctx context.Context, n int) {
	const warm = 2
	s, err := b.floor.Start(ctx, "sleep")
	b.check(err)
	uid, _, err := b.start(ctx)
	b.check(err)
	var ours, floors []float64
	for i := range n + warm {
		theirs, err := s.Exec(ctx, "/probe", "say", "x", "")
		b.check(err)
		mine, err := b.firstByte(ctx, uid)
		b.check(err)
		if i >= warm {
			ours, floors = append(ours, ms(mine)), append(floors, ms(theirs))
		}
	}
	b.check(s.Remove(ctx))
	b.check(b.remove(ctx, uid))
	b.add("exec, first byte, p50", "ms", quantile(ours, 0.5), quantile(floors, 0.5), "<= floor + 15 ms, aim below")
	b.add("exec, first byte, p99", "ms", quantile(ours, 0.99), quantile(floors, 0.99), "")
}

// firstByte runs a process in one of ours and returns how long its first output took.
func (b *bench) firstByte(ctx context.Context, uid string) (took time.Duration, err error) {
	began := time.Now()
	stream, err := sandboxhostv1.NewExecServiceClient(b.bed.Conn("sandboxhost")).Exec(ctx)
	if err != nil {
		return 0, err
	}
	start := &sandboxhostv1.ExecStart{Uid: uid, Command: []string{"/probe", "say", "x", ""}}
	if err := stream.Send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Start{Start: start}}); err != nil {
		return 0, err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && took != 0:
			return took, nil
		case err != nil:
			return 0, err
		case len(m.GetStdout()) != 0 && took == 0:
			took = time.Since(began)
		}
	}
}

// followed is what a follower has to get of one container whole, in bytes a second.
const followed = 100 << 20

// logs has one container print as fast as it is taken, and follows; the floor's shim
// writes to a file itself, and nobody reads that. Whoever prints faster than a follower
// reads is not held up by it, so what is lost counts at the rate that is promised.
func (b *bench) logs(ctx context.Context, size int64) {
	theirs, err := b.floor.Flood(ctx, size)
	b.check(err)
	mine, _, err := b.flood(ctx, size, 0)
	b.check(err)
	before := b.cpu(b.bed.PID("sandboxhost"))
	_, lost, err := b.flood(ctx, size, followed)
	b.check(err)
	used := b.cpu(b.bed.PID("sandboxhost")) - before
	all := float64(size) / (1 << 20)
	b.add(fmt.Sprintf("output of one container, %.0f MiB with a follower", all), "MiB/s", all/mine.Seconds(), all/theirs.Seconds(), "")
	b.add("output per core of sandboxhost, 100 MiB/s with a follower", "MiB/s", all/max(used, 0.01), 0, ">= 100")
	b.add("output that the follower did not get", "bytes", float64(lost), 0, "0")
}

// flood returns how long it took until all had come to a follower, from the first byte
// on, and how much of it never did.
func (b *bench) flood(ctx context.Context, size, rate int64) (took time.Duration, lost int64, err error) {
	uid, _, err := b.startOf(ctx, func(s *resourcev1.SandboxSpec) {
		s.Containers[0].Args = []string{"flood", fmt.Sprint(size), fmt.Sprint(rate)}
	})
	if err != nil {
		return 0, 0, err
	}
	logs, err := b.bed.Host().ReadLogs(ctx, &sandboxhostv1.ReadLogsRequest{Uid: uid, Attempt: 1, Follow: true})
	if err != nil {
		return 0, 0, err
	}
	var began time.Time
	var next int64
	for {
		m, err := logs.Recv()
		if errors.Is(err, io.EOF) {
			return time.Since(began), lost + size - next, b.remove(ctx, uid)
		}
		if err != nil {
			return 0, 0, err
		}
		if began.IsZero() {
			began = time.Now()
		}
		lost += m.GetOffset() - next
		next = m.GetOffset() + int64(len(m.GetData()))
	}
}
