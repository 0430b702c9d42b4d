package node

import (
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/journal"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Buckets and keys of the journal.
const (
	bucket        = "node"
	keySession    = "session"
	keyStatus     = "status"
	keyRegistered = "registered"
)

// notes are what presence keeps over restarts.
type notes struct {
	journal *journal.Journal
}

// load returns the session to resume, the last status that was handed over, nil
// if there was none, and when the node was registered.
func (n *notes) load() (s Session, sent *resourcev1.NodeStatus, registered *timestamppb.Timestamp, err error) {
	err = n.journal.View(func(tx journal.Tx) error {
		kept, _, err := journal.GetProto[*clusteraccessv1.RenewSessionResponse](tx, bucket, keySession)
		if err != nil {
			return err
		}
		s = Session{ID: kept.GetSessionId(), NodeUID: kept.GetNodeUid()}
		status, found, err := journal.GetProto[*resourcev1.NodeStatus](tx, bucket, keyStatus)
		if err != nil {
			return err
		}
		if found {
			sent = status
		}
		at, found, err := journal.GetProto[*timestamppb.Timestamp](tx, bucket, keyRegistered)
		if found {
			registered = at
		}
		return err
	})
	return s, sent, registered, err
}

func (n *notes) keepSession(s Session) error {
	return n.journal.Update(func(tx journal.Tx) error {
		return journal.PutProto(tx, bucket, keySession, &clusteraccessv1.RenewSessionResponse{SessionId: s.ID, NodeUid: s.NodeUID})
	})
}

func (n *notes) keepStatus(s *resourcev1.NodeStatus) error {
	return n.journal.Update(func(tx journal.Tx) error { return journal.PutProto(tx, bucket, keyStatus, s) })
}

func (n *notes) keepRegistered(at *timestamppb.Timestamp) error {
	return n.journal.Update(func(tx journal.Tx) error { return journal.PutProto(tx, bucket, keyRegistered, at) })
}

// close ends the notes, joined to a cause.
func (n *notes) close(cause error) error {
	if err := n.journal.Close(); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}
