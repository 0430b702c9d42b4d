package secret

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/rights"
)

// ResolveSecrets sends what a sandbox refers to, or what is missing until it is not.
func (s *Secrets) ResolveSecrets(req *coordinatorv1.ResolveSecretsRequest, stream grpc.ServerStreamingServer[coordinatorv1.ResolveSecretsResponse]) error {
	ctx := stream.Context()
	for said := ""; ; {
		found, err := s.resolve(ctx, req)
		if err != nil {
			return err
		}
		if found.missing == "" {
			return s.hand(stream, req.GetSandboxUid(), found)
		}
		if found.missing != said {
			said = found.missing
			err := stream.Send(&coordinatorv1.ResolveSecretsResponse{Event: &coordinatorv1.ResolveSecretsResponse_Missing{Missing: said}})
			if err != nil {
				return err
			}
		}
		err = s.deps.Store().AwaitSecret(ctx, found.names, found.revision)
		if err != nil && !errors.Is(err, fault.Conflict) { // a conflict: that history is not kept, read again
			return err
		}
	}
}

// resolved is what one look found.
type resolved struct {
	missing  string // a sentence; empty if nothing is
	secrets  []*resourcev1.SecretData
	names    map[string]bool
	revision uint64 // as of which the oldest was read
}

// resolve looks once, by the record as it is now.
func (s *Secrets) resolve(ctx context.Context, req *coordinatorv1.ResolveSecretsRequest) (resolved, error) {
	c, err := s.deps.Door.Caller(ctx)
	if err != nil {
		return resolved{}, err
	}
	if err := s.deps.Door.OneMachine(c, req.GetInstance()); err != nil {
		return resolved{}, err
	}
	r, err := s.deps.Store().GetUID(ctx, record.Sandbox, req.GetSandboxUid())
	if err != nil {
		return resolved{}, err
	}
	if err := c.Check(rights.Read, r); err != nil {
		return resolved{}, err
	}
	refs := references(r.GetSandbox().GetSpec())
	if len(refs) > maxRefs {
		return resolved{}, fault.New(fault.Invalid, "resolve secrets of %s: it refers to %d, at most %d are given", record.KeyOf(r), len(refs), maxRefs)
	}
	found := resolved{names: map[string]bool{}}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		data, lacks, at, err := s.look(ctx, name, refs[name])
		if err != nil {
			return resolved{}, err
		}
		if found.revision == 0 || at < found.revision {
			found.revision = at
		}
		found.names[name] = true
		found.secrets = append(found.secrets, data)
		if lacks != "" {
			missing = append(missing, lacks)
		}
	}
	found.missing = strings.Join(missing, "; ")
	return found, nil
}

// look reads one secret, or says what it lacks.
func (s *Secrets) look(ctx context.Context, name string, want *wanted) (data *resourcev1.SecretData, lacks string, at uint64, err error) {
	kept, at, err := s.deps.Store().Secret(ctx, name)
	if err != nil {
		return nil, "", 0, err
	}
	if kept.Revision == 0 {
		return nil, fmt.Sprintf("there is no secret %s", name), at, nil
	}
	about, err := decodeAbout(kept)
	if err != nil {
		return nil, "", 0, err
	}
	if keys := want.lacks(about); len(keys) > 0 {
		return nil, fmt.Sprintf("secret %s has no key %s", name, strings.Join(keys, ", ")), at, nil
	}
	entries, err := s.unseal(ctx, kept)
	if err != nil {
		return nil, "", 0, err
	}
	return &resourcev1.SecretData{Name: name, Revision: kept.Revision, Entries: want.pick(entries)}, "", at, nil
}

// hand gives values to the node.
func (s *Secrets) hand(stream grpc.ServerStreamingServer[coordinatorv1.ResolveSecretsResponse], uid string, found resolved) error {
	for _, data := range found.secrets {
		err := stream.Send(&coordinatorv1.ResolveSecretsResponse{Event: &coordinatorv1.ResolveSecretsResponse_Secret{Secret: data}})
		if err != nil {
			return err
		}
		s.deps.Log.Info("secret given", logging.Secret(data.GetName()), logging.Revision(data.GetRevision()),
			id.Sandbox(uid).Attr(), by(stream.Context()))
	}
	return nil
}
