package link

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// callTimeout bounds one question to the coordinator, so that a dead connection
// is not taken for a slow answer.
const callTimeout = 5 * time.Second

// Coordinator is what of the coordinator this process forwards to. Its errors are
// those of the coordinator; Unavailable while it cannot be reached.
type Coordinator struct {
	resources coordinatorv1.ResourceServiceClient
	sessions  coordinatorv1.SessionServiceClient
	secrets   coordinatorv1.SecretServiceClient
	self      Self
}

// Self is what the coordinator is told of this node with its session.
type Self struct {
	// Instance names this machine and boot.
	Instance string
	// Labels are those of node.yaml.
	Labels map[string]string
}

// NewCoordinator returns the coordinator at the end of a connection.
func NewCoordinator(conn grpc.ClientConnInterface, self Self) *Coordinator {
	return &Coordinator{
		resources: coordinatorv1.NewResourceServiceClient(conn),
		sessions:  coordinatorv1.NewSessionServiceClient(conn),
		secrets:   coordinatorv1.NewSecretServiceClient(conn),
		self:      self,
	}
}

// Session is an open session of this node.
type Session struct {
	// ID of the session, never 0.
	ID int64
	// TTL is how long it lasts from when the request was sent.
	TTL time.Duration
	// NodeUID is the uid of the node's record.
	NodeUID string
	// Refused are the identities that are let in no more.
	Refused []string
}

// Resource asks for one record by uid. With a position, NotFound is the word of a
// history that contains it.
func (c *Coordinator) Resource(
	ctx context.Context, kind resourcev1.Kind, uid string, at *resourcev1.Position,
) (*resourcev1.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.resources.GetResource(ctx, &coordinatorv1.GetResourceRequest{
		Kind: kind, Which: &coordinatorv1.GetResourceRequest_Uid{Uid: uid}, Position: at,
	})
	return resp.GetResource(), err
}

// UpdateStatus sends the status of one record.
func (c *Coordinator) UpdateStatus(ctx context.Context, record *resourcev1.Resource) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.resources.UpdateResourceStatus(ctx, &coordinatorv1.UpdateResourceStatusRequest{Resource: record, Instance: c.self.Instance})
	return err
}

// Renew keeps the session open, or opens one.
func (c *Coordinator) Renew(ctx context.Context, session int64, ttl time.Duration) (Session, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.sessions.RenewSession(ctx, &coordinatorv1.RenewSessionRequest{
		SessionId: session, Ttl: durationpb.New(ttl), Instance: c.self.Instance, Labels: c.self.Labels,
	})
	return Session{
		ID: resp.GetSessionId(), TTL: resp.GetTtl().AsDuration(), NodeUID: resp.GetNodeUid(), Refused: resp.GetRefusedIdentities(),
	}, err
}

// End ends the session.
func (c *Coordinator) End(ctx context.Context, session int64, workloadsKept bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.sessions.EndSession(ctx, &coordinatorv1.EndSessionRequest{SessionId: session, WorkloadsKept: workloadsKept})
	return err
}

// Secrets tells every message about the secrets of a sandbox until all values came.
// It waits as long as something is missing.
func (c *Coordinator) Secrets(ctx context.Context, uid string, tell func(*coordinatorv1.ResolveSecretsResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.secrets.ResolveSecrets(ctx, &coordinatorv1.ResolveSecretsRequest{SandboxUid: uid, Instance: c.self.Instance})
	for err == nil {
		var msg *coordinatorv1.ResolveSecretsResponse
		if msg, err = stream.Recv(); err == nil {
			err = tell(msg)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
