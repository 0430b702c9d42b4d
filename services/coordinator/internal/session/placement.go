package session

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// The three moves of a node's placement. Registration survives all of them.

// opened begins a session. What the node said before does not count in it.
func opened(n *resourcev1.Node, id int64) *resourcev1.NodePlacement {
	return &resourcev1.NodePlacement{
		SessionId: id, RegisteredAt: n.GetPlacement().GetRegisteredAt(), StatusSeq: n.GetStatus().GetSeq(),
	}
}

func left(p *resourcev1.NodePlacement, kept bool, at *timestamppb.Timestamp) *resourcev1.NodePlacement {
	return &resourcev1.NodePlacement{LeftAt: at, WorkloadsKept: kept, RegisteredAt: p.GetRegisteredAt()}
}

// Lost is the placement of a node whose session went away without a word.
func Lost(p *resourcev1.NodePlacement, at *timestamppb.Timestamp) *resourcev1.NodePlacement {
	next := proto.CloneOf(p)
	next.SessionId, next.LostSince = 0, at
	return next
}
