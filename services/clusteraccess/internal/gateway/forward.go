package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// errStopping ends the calls that are open when the gateway stops.
var errStopping = errors.New("the gateway is stopping")

// errRefused ends the calls of a caller that the cluster refuses from then on.
var errRefused = errors.New("its identity is refused from now on by the coordinator of this cluster")

// bothWays fits every method: a unary call is one message in each direction.
var bothWays = grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// call is one call that is passed on.
type call struct {
	method string
	from   visitor
	to     route
	begin  time.Time
}

// handle is the only handler of the server: it passes a call on, or says why not.
func (g *Gateway) handle(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down) // there is one in every handler
	c := call{method: method, from: caller(down.Context()), begin: time.Now()}
	err := g.admit(down, &c)
	level := slog.LevelDebug // the process that answers writes a line of its own
	if errors.Is(err, fault.Denied) {
		level = slog.LevelWarn
	}
	g.log(down.Context(), level, c, err)
	return fault.ToStatus(err)
}

// admit passes on what may be. A refusal has a kind; what the process answered has
// none, and stays as it is.
func (g *Gateway) admit(down grpc.ServerStream, c *call) (err error) {
	if err := c.from.check(c.begin); err != nil {
		return fault.New(fault.Denied, "forward %.200s: %w", c.method, err)
	}
	md, _ := metadata.FromIncomingContext(down.Context())
	if c.to, err = g.routes.find(c.method, md.Get(ProcessKey)); err != nil {
		return err
	}
	leave, err := g.limit.enter(c.from.name)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(metadata.NewOutgoingContext(down.Context(), inward(md, c.from.name)))
	defer cancel(nil)
	known, err := g.deps.Refusals.Enter(c.from.name, func() { cancel(errRefused) })
	if err != nil {
		return fault.WithReason(fault.New(fault.KindOf(err), "forward %.200s: %w", c.method, err), fault.Reason(err))
	}
	defer known()
	defer g.bound(c, cancel)()
	err = g.pass(ctx, cancel, down, c)
	return verdict(ctx, c, err)
}

// bound ends a call with its certificate, and with the gateway: what has no end of
// its own at once, anything else when its time to finish is over.
func (g *Gateway) bound(c *call, cancel context.CancelCauseFunc) (release func()) {
	end := g.cutoff
	if c.to.endless {
		end = g.stopping
	}
	stop := context.AfterFunc(end, func() { cancel(errStopping) })
	expiry := time.AfterFunc(c.from.until.Sub(c.begin), func() { cancel(errExpired) })
	return func() {
		stop()
		expiry.Stop()
	}
}

// pass connects the two ends until the process has answered. Each message is sent
// before the next is taken, so that who is slow slows down the other end.
func (g *Gateway) pass(ctx context.Context, cancel context.CancelCauseFunc, down grpc.ServerStream, c *call) error {
	up, err := g.conns[c.to.process].NewStream(ctx, &bothWays, c.method)
	if err != nil {
		return err
	}
	g.pumps.Go(func() { // ends with the caller's stream, at the latest when handle has returned; serve waits for it
		if err := requests(down, up); err != nil {
			cancel(err)
		}
	})
	return answers(up, down)
}

// requests passes on what the caller sends, and that it has no more to send.
func requests(down grpc.ServerStream, up grpc.ClientStream) error {
	for {
		var m message
		switch err := down.RecvMsg(&m); {
		case errors.Is(err, io.EOF):
			return up.CloseSend()
		case err != nil:
			return err
		}
		if err := up.SendMsg(&m); err != nil {
			m.free()
			if errors.Is(err, io.EOF) {
				return nil // the process has answered for good; answers says how
			}
			return err
		}
	}
}

// answers passes on what the process answers. The header goes first, by itself: one
// who watches waits for it, maybe long before the first message.
func answers(up grpc.ClientStream, down grpc.ServerStream) error {
	header, err := up.Header()
	if err == nil && header != nil { // else the process ended the call without one
		err = down.SendHeader(outward(header))
	}
	if err != nil {
		return err
	}
	for {
		var m message
		if err := up.RecvMsg(&m); err != nil {
			down.SetTrailer(outward(up.Trailer()))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := down.SendMsg(&m); err != nil {
			m.free()
			return err
		}
	}
}

// verdict is what the caller is told: the status of the process as it is, unless it
// was the gateway that ended the call, or no process was there to answer.
func verdict(ctx context.Context, c *call, err error) error {
	if err == nil {
		return nil
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopping):
		return fault.New(fault.Unavailable, "forward %s: %w", c.method, cause)
	case errors.Is(cause, errExpired):
		return fault.New(fault.Denied, "forward %s: %w", c.method, cause)
	case errors.Is(cause, errRefused):
		return fault.WithReason(fault.New(fault.Denied, "forward %s: %s: %w", c.method, c.from.name, cause), "REFUSED")
	}
	if why, unanswered := fault.Unanswered(err); unanswered {
		return fault.WithReason(fault.New(fault.Unavailable, "forward %s: %s does not answer: %s", c.method, c.to.process, why), "PROCESS_DOWN")
	}
	return err
}

// log writes the one line of a call.
func (g *Gateway) log(ctx context.Context, level slog.Level, c call, err error) {
	if !g.deps.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		logging.Method(c.method), logging.Component(c.to.process), logging.Code(codeOf(err)),
		logging.Duration(time.Since(c.begin)), logging.Peer(c.from.name),
	}
	if err != nil {
		attrs = append(attrs, logging.Err(err))
	}
	g.deps.Log.LogAttrs(ctx, level, "call forwarded", attrs...)
}

// codeOf names the outcome by kind.
func codeOf(err error) string {
	err = fault.FromStatus(fault.ToStatus(err))
	switch {
	case err == nil:
		return "OK"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	}
	return fault.KindOf(err).String()
}
