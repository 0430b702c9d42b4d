package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
)

// Neighbour is a process that another one needs.
type Neighbour struct {
	// Name as in the boot graph.
	Name string
	// Conn leads to a server of gRPC health.
	Conn grpc.ClientConnInterface
}

// gateRetry spaces the questions to a neighbour that cannot be asked. Its cap is
// short because a boot pays it once per step of the graph.
var gateRetry = backoff.Policy{Initial: 20 * time.Millisecond, Cap: 200 * time.Millisecond}

const (
	askTimeout = time.Second // for the question why a neighbour is not ready
	askPeriod  = time.Second // between two such questions
)

// redialer is a connection that can be told to try again now.
type redialer interface{ ResetConnectBackoff() }

// Gate returns the member that holds a process back until all neighbours say
// SERVING, and keeps watching them: while one is away the status says which, why
// and for how long. It never fails because of a neighbour.
func Gate(st *Status, log *slog.Logger, neighbours ...Neighbour) run.Member {
	return run.Member{Name: "neighbours", Run: func(ctx context.Context, ready func()) error {
		g := &gate{status: st, log: log, ready: ready, missing: len(neighbours)}
		if len(neighbours) == 0 {
			ready()
		}
		var wg sync.WaitGroup
		for _, n := range neighbours {
			st.wait(n.Name, "no answer", false)
			wg.Go(func() { g.watch(ctx, n) }) // ends with ctx; waited for below
		}
		wg.Wait()
		<-ctx.Done()
		return context.Cause(ctx)
	}}
}

// gate counts the neighbours that never served yet.
type gate struct {
	status *Status
	log    *slog.Logger
	ready  func()

	mu      sync.Mutex
	missing int // guarded by mu
}

// watch follows one neighbour until ctx ends.
func (g *gate) watch(ctx context.Context, n Neighbour) {
	served := false
	for attempt := 1; ctx.Err() == nil; attempt++ {
		err := g.follow(ctx, n, func(serving bool) {
			attempt = 1
			if serving && !served {
				served = true
				g.arrived()
			}
		})
		if ctx.Err() != nil {
			return
		}
		g.away(n, brief(err), false)
		if backoff.Wait(ctx, gateRetry.Delay(attempt, rand.Float64())) != nil {
			return
		}
		if conn, ok := n.Conn.(redialer); ok {
			conn.ResetConnectBackoff()
		}
	}
}

// follow reads one health stream to its end. While the neighbour is not serving
// it asks again and again why: health tells no reason, and no change of it.
func (g *gate) follow(ctx context.Context, n Neighbour, tell func(serving bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stream, err := healthv1.NewHealthClient(n.Conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	answers, end := make(chan bool), make(chan error, 1)
	wg.Go(func() { end <- receive(ctx, stream, answers) }) // owned by follow: ends with ctx

	tick := time.NewTicker(askPeriod)
	defer tick.Stop()
	answered, serving := false, false
	for {
		select {
		case serving = <-answers:
			answered = true
			g.take(ctx, n, serving)
			tell(serving)
		case <-tick.C:
			if answered && !serving {
				g.take(ctx, n, false)
			}
		case err := <-end:
			return err
		}
	}
}

func receive(ctx context.Context, stream healthv1.Health_WatchClient, answers chan<- bool) error {
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case answers <- answer.GetStatus() == healthv1.HealthCheckResponse_SERVING:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take records what the neighbour says of itself.
func (g *gate) take(ctx context.Context, n Neighbour, serving bool) {
	if !serving {
		reason, external := ask(ctx, n)
		g.away(n, reason, external)
		return
	}
	if g.status.arrived(n.Name) {
		g.log.Info("neighbour arrived", logging.Component(n.Name))
	}
}

func (g *gate) away(n Neighbour, reason string, external bool) {
	if g.status.wait(n.Name, reason, external) {
		g.log.Warn("neighbour missed", logging.Component(n.Name), logging.Reason(reason))
	}
}

func (g *gate) arrived() {
	g.mu.Lock()
	g.missing--
	all := g.missing == 0
	g.mu.Unlock()
	if all {
		g.ready()
	}
}

// ask returns the neighbour's own reason. One that is none of ours has none.
func ask(ctx context.Context, n Neighbour) (reason string, external bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := processv1.NewProcessServiceClient(n.Conn).GetStatus(ctx, &processv1.GetStatusRequest{})
	if err != nil || st.GetReason() == "" {
		return "not serving", false
	}
	return waitedFor.ReplaceAllString(st.GetReason(), ""), st.GetExternal()
}

// waitedFor is how long a neighbour has waited itself; said inside of another
// reason it would stand still.
var waitedFor = regexp.MustCompile(` for [0-9][0-9hms]*s\b`)

// wait records that a neighbour is away; the first time of a spell counts. It
// reports whether the spell is new.
func (s *Status) wait(name, reason string, external bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	source := "neighbour " + name
	old, known := s.blocks[source]
	b := block{
		reason: fmt.Sprintf("waiting for %s: %s", name, reason), waitingFor: []string{name},
		external: external, since: time.Now(),
	}
	if known {
		b.since = old.since
	}
	if !known || old.reason != b.reason || old.external != external {
		s.blocks[source] = b
		s.changeLocked()
	}
	return !known
}

// arrived records that a neighbour serves, and reports whether it was away.
func (s *Status) arrived(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	source := "neighbour " + name
	_, away := s.blocks[source]
	if away {
		delete(s.blocks, source)
		s.changeLocked()
	}
	return away
}

// brief keeps of a transport error what a person needs: the last cause.
func brief(err error) string {
	if err == nil {
		return "connection closed"
	}
	text := strings.TrimRight(err.Error(), `"'`)
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	if text == "EOF" {
		return "connection closed"
	}
	const most = 120
	return strings.Trim(text[:min(len(text), most)], `"' `)
}
