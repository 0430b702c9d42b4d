package target

import (
	"context"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/kit/fault"
)

// Presence is the process of one node that says whether it takes work.
type Presence struct {
	conn *grpc.ClientConn
	api  presencev1.PresenceServiceClient
}

// Presence connects to the presence of the node whose sandboxhost NodeSocket names:
// the sockets of a node lie side by side.
func (s *Settings) Presence(ctx context.Context) (*Presence, error) {
	path := filepath.Join(filepath.Dir(s.NodeSocket), "presence.sock")
	conn, err := Socket(ctx, "presence", path)
	if err != nil {
		return nil, err
	}
	return &Presence{conn, presencev1.NewPresenceServiceClient(conn)}, nil
}

// Close ends the connection.
func (p *Presence) Close() error { return p.conn.Close() }

// Get returns how the node is.
func (p *Presence) Get(ctx context.Context) (*presencev1.Presence, error) {
	r, err := p.api.GetPresence(ctx, &presencev1.GetPresenceRequest{})
	return r.GetPresence(), p.wrap(err, "ask the node")
}

// Cordon keeps new sandboxes away from the node.
func (p *Presence) Cordon(ctx context.Context, reason string) error {
	_, err := p.api.Cordon(ctx, &presencev1.CordonRequest{Reason: reason})
	return p.wrap(err, "cordon the node")
}

// Uncordon lets the node be given work again, and what was drained go on.
func (p *Presence) Uncordon(ctx context.Context) error {
	_, err := p.api.Uncordon(ctx, &presencev1.UncordonRequest{})
	return p.wrap(err, "uncordon the node")
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
	return p.wrap(err, "drain the node")
}

func (p *Presence) wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	if fault.KindOf(err) == fault.Denied {
		return Refused("presence", strings.TrimPrefix(p.conn.Target(), "unix://"), err)
	}
	return wrap(err, "%s", what)
}
