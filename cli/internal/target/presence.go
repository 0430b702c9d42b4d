package target

import (
	"context"
	"errors"
	"path/filepath"

	"google.golang.org/grpc"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/fault"
)

// Presence is the process of one node that says whether it takes work. It is reached
// by its socket, or from anywhere through the gateway of its node.
type Presence struct {
	conn *grpc.ClientConn
	api  presencev1.PresenceServiceClient
	node string                // in messages, such as "node node1"
	deny func(err error) error // says what to do about a refusal; nil if that is said
}

// Presence connects to the presence of the node whose sandboxhost NodeSocket names:
// the sockets of a node lie side by side.
func (s *Settings) Presence(ctx context.Context) (*Presence, error) {
	path := filepath.Join(filepath.Dir(s.NodeSocket), "presence.sock")
	conn, err := Socket(ctx, "presence", path)
	if err != nil {
		return nil, err
	}
	return &Presence{conn, presencev1.NewPresenceServiceClient(conn), "the node", func(err error) error {
		return Refused("presence", path, err)
	}}, nil
}

// Close ends the connection.
func (p *Presence) Close() error { return p.conn.Close() }

// Get returns how the node is.
func (p *Presence) Get(ctx context.Context) (*presencev1.Presence, error) {
	r, err := p.api.GetPresence(ctx, &presencev1.GetPresenceRequest{})
	if err != nil {
		return nil, p.failed("ask", err)
	}
	return r.GetPresence(), nil
}

// Watch sends how the node is, at once and after each change, until emit fails or the
// stream ends.
func (p *Presence) Watch(ctx context.Context, emit func(*presencev1.Presence) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.api.WatchPresence(ctx, &presencev1.WatchPresenceRequest{})
	if err != nil {
		return p.failed("watch", err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended("watch "+p.node, err)
		}
		if err := emit(msg.GetPresence()); err != nil {
			return err
		}
	}
}

// Cordon keeps new sandboxes away from the node.
func (p *Presence) Cordon(ctx context.Context, reason string) error {
	_, err := p.api.Cordon(ctx, &presencev1.CordonRequest{Reason: reason})
	return p.failed("cordon", err)
}

// Uncordon lets the node be given work again, and what was drained go on.
func (p *Presence) Uncordon(ctx context.Context) error {
	_, err := p.api.Uncordon(ctx, &presencev1.UncordonRequest{})
	return p.failed("uncordon", err)
}

// Drain has the node drained and shows how far that is, until it is done or show
// fails. The drain itself goes on in either case.
func (p *Presence) Drain(ctx context.Context, req *presencev1.DrainRequest, show func(*presencev1.DrainProgress) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.api.Drain(ctx, req)
	for err == nil {
		var msg *presencev1.DrainResponse
		if msg, err = stream.Recv(); err != nil {
			break
		}
		if err := show(msg.GetProgress()); err != nil {
			return err
		}
		if msg.GetProgress().GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
			return nil
		}
	}
	return p.failed("drain", err)
}

// FollowDrain shows how far a drain is that was asked for before, until it is done or
// show fails, and asks for none: if somebody ended it meanwhile, that is a Conflict
// with reason UNCORDONED.
func (p *Presence) FollowDrain(ctx context.Context, shutdown bool, show func(*presencev1.DrainProgress) error) error {
	err := p.Watch(ctx, func(now *presencev1.Presence) error {
		if now.GetAdmission() == nil {
			return nil // it has just started, and does not know yet
		}
		progress := now.GetAdmission().GetDrain()
		if shutdown {
			progress = now.GetAdmission().GetShutdown()
		}
		if progress == nil {
			return fault.WithReason(fault.New(fault.Conflict, "drain %s: it was uncordoned meanwhile", p.node), "UNCORDONED")
		}
		if err := show(progress); err != nil {
			return err
		}
		if progress.GetStep() == presencev1.DrainStep_DRAIN_STEP_DONE {
			return errDone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// errDone ends a stream that has said all.
var errDone = errors.New("done")

func (p *Presence) failed(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case p.deny != nil && fault.KindOf(err) == fault.Denied:
		return p.deny(err)
	}
	return wrap(err, "%s %s", verb, p.node)
}
