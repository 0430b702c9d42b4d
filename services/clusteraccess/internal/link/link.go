// Package link owns the node's connection to the coordinator, and the watch that
// keeps the mirror up to date over it.
//
// There is one connection, which is made again for ever, with what the files of
// the credentials say at that moment. A cut without a word is noticed by
// questions that get no answer. The watch resumes by revision; it begins anew
// where the history is not kept, or is another one. What it receives counts from
// the marker on: until then the mirror stays as it was.
//
// It must never fill the mirror with half a snapshot, and never let a stream that
// ended pass for a live one. In the trail it is how a record comes to the node.
package link

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	kitbackoff "staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/clusteraccess/internal/credentials"
	"staddle.internal/services/clusteraccess/internal/mirror"
)

// How the link lives. An answer that does not come within pingAfter + pingTimeout
// ends the connection; the coordinator allows a ping every 10 s. Data that nobody
// acknowledges ends it after pingTimeout.
const (
	pingAfter   = 12 * time.Second
	pingTimeout = 5 * time.Second
	dialTimeout = 5 * time.Second
	retryCap    = 3 * time.Second
)

var retry = kitbackoff.Policy{Initial: 200 * time.Millisecond, Cap: retryCap, Stable: 30 * time.Second}

// target is what the watch keeps up to date.
type target interface {
	Replace(records []*resourcev1.Resource, at mirror.Place)
	CaughtUp(changes []mirror.Change, at mirror.Place)
	Apply(changes []mirror.Change, revision uint64)
	Lost(reason string)
	Place() mirror.Place
}

// Dial returns the connection to the coordinator. It does not wait: a call fails
// at once with the reason while the coordinator is not reached.
func Dial(address string, files credentials.Files, log *slog.Logger) (*grpc.ClientConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return rpc.Dial(address, rpc.DialConfig{
		TLS: tlsConfig(files, address), Log: log, FailFast: true,
		Options: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				if _, err := files.Load(); err != nil {
					return nil, err // a better reason than any that the handshake has
				}
				return dialer.DialContext(ctx, "tcp", addr)
			}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: retryCap},
				MinConnectTimeout: dialTimeout,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		},
	})
}

// Config says how the coordinator is called in texts.
type Config struct {
	// Address of the coordinator.
	Address string
	// Instance names this machine and boot.
	Instance string
}

// Deps is what a follower needs.
type Deps struct {
	// Conn leads to the coordinator.
	Conn grpc.ClientConnInterface
	// Mirror is kept up to date.
	Mirror *mirror.Mirror
	// Log says when the link is made and lost.
	Log *slog.Logger
}

// Follower keeps the mirror up to date.
type Follower struct {
	cfg    Config
	log    *slog.Logger
	mirror target
	watch  *watch
}

// NewFollower returns a follower that does nothing until Run.
func NewFollower(cfg Config, deps Deps) *Follower {
	return &Follower{cfg: cfg, log: deps.Log, mirror: deps.Mirror, watch: newWatch(deps.Conn, deps.Mirror, cfg.Instance)}
}

// Run follows the coordinator until ctx ends. It is ready at once: whether the
// coordinator is reached holds nobody up.
func (f *Follower) Run(ctx context.Context, ready func()) error {
	ready()
	said, again := "", false
	for attempt := 0; ; {
		began := time.Now()
		err := f.watch.run(ctx, func() {
			said = ""
			f.log.Info("link made", logging.Peer(f.cfg.Address))
		})
		reason := f.reason(err)
		f.mirror.Lost(reason)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if reason != said { // once per cause, not per try
			said = reason
			f.log.Warn("link lost", logging.Peer(f.cfg.Address), logging.Reason(reason))
		}
		if again = fault.Reason(err) == reasonAnew && !again; again {
			continue // at once, but not for ever
		}
		attempt = retry.Next(attempt, time.Since(began))
		if kitbackoff.Wait(ctx, retry.Delay(attempt, rand.Float64())) != nil {
			return context.Cause(ctx)
		}
	}
}

func (f *Follower) reason(err error) string {
	text := err.Error()
	for _, noise := range []string{
		"connection error: ", "transport: ", "Error while dialing: ", "desc = ", `"`,
	} {
		text = strings.ReplaceAll(text, noise, "")
	}
	return fmt.Sprintf("the coordinator at %s is not reached: %s", f.cfg.Address, text)
}
