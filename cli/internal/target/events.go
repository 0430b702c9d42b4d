package target

import (
	"context"
	"errors"
	"io"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// ReadEvents hands each event that is asked for to show, and notes in req how far it
// came. It returns nil when all that was asked for came, and what show returned.
func (i *Inside) ReadEvents(ctx context.Context, req *sandboxhostv1.ReadEventsRequest, show func(*sandboxhostv1.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := i.Events.ReadEvents(ctx, req)
	if err != nil {
		return wrap(err, "read events")
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) && !req.GetFollow() {
			return nil
		}
		if err != nil {
			return ended("read events", err)
		}
		if err := show(m.GetEvent()); err != nil {
			return err
		}
		req.AfterSeq, req.Limit = m.GetEvent().GetSeq(), 0
	}
}
