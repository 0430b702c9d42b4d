package secret

import (
	"context"
	"encoding/base64"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator/internal/admit"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxRaces bounds how often a change is tried again that others overtook.
	maxRaces = 20
)

// Config says where keys are.
type Config struct {
	// KeyFile is the file of keys, made when the first secret is put.
	KeyFile string
}

// Deps is what the service needs. Store is asked for at each call: it exists once
// etcd answers, and no call is admitted before.
type Deps struct {
	Store func() *store.Store
	Door  admit.Door
	Log   *slog.Logger
}

// Secrets serves SecretService.
type Secrets struct {
	coordinatorv1.UnimplementedSecretServiceServer
	deps Deps
	keys *keyring
}

// New returns the service.
func New(cfg Config, deps Deps) *Secrets {
	return &Secrets{deps: deps, keys: &keyring{path: cfg.KeyFile}}
}

// by says on whose behalf something was done, for the line that says what.
func by(ctx context.Context) slog.Attr { return logging.Peer(rpc.Caller(ctx).Name) }

// PutSecret makes or changes a secret.
func (s *Secrets) PutSecret(ctx context.Context, req *coordinatorv1.PutSecretRequest) (*coordinatorv1.PutSecretResponse, error) {
	for range maxRaces {
		kept, changed, err := s.put(ctx, req)
		if fault.Reason(err) == store.ReasonRevision {
			continue
		}
		if err != nil {
			return nil, err
		}
		if changed {
			s.deps.Log.Info("secret put", logging.Secret(req.GetName()), logging.Revision(kept.GetRevision()), by(ctx))
		}
		return &coordinatorv1.PutSecretResponse{Secret: kept}, nil
	}
	return nil, raced("put secret " + req.GetName())
}

// put tries once.
func (s *Secrets) put(ctx context.Context, req *coordinatorv1.PutSecretRequest) (kept *coordinatorv1.Secret, changed bool, err error) {
	old, _, err := s.deps.Store().Secret(ctx, req.GetName())
	if err != nil {
		return nil, false, err
	}
	var room []store.Counted
	about, entries := &coordinatorv1.Secret{Name: req.GetName(), CreatedAt: timestamppb.Now()}, []*resourcev1.SecretEntry(nil)
	if old.Revision != 0 {
		if about, err = decodeAbout(old); err != nil {
			return nil, false, err
		}
		if entries, err = s.unseal(ctx, old); err != nil {
			return nil, false, err
		}
	} else {
		done, err := s.deps.Store().Turn(ctx)
		if err != nil {
			return nil, false, err
		}
		defer done()
		counted, err := s.roomForOneMore(ctx, req.GetName())
		if err != nil {
			return nil, false, err
		}
		room = append(room, counted)
	}
	next, err := merged(entries, req)
	if err != nil {
		return nil, false, err
	}
	if old.Revision != 0 && sameEntries(entries, next) {
		return about, false, nil
	}
	about.Keys, about.UpdatedAt = keysOf(next), timestamppb.Now()
	if old.Sealed, err = s.seal(ctx, req.GetName(), next); err != nil {
		return nil, false, err
	}
	if old.About, err = proto.Marshal(about); err != nil {
		return nil, false, fault.New(fault.Internal, "encode secret %s: %w", req.GetName(), err)
	}
	about.Revision, err = s.deps.Store().PutSecret(ctx, old, room...)
	return about, err == nil, err
}

// roomForOneMore is how many secrets there are, which leaves room for one more.
func (s *Secrets) roomForOneMore(ctx context.Context, name string) (store.Counted, error) {
	counted, err := s.deps.Store().CountSecrets(ctx)
	if err == nil && counted.N >= maxSecrets {
		err = fault.New(fault.Exhausted, "put secret %s: there are %d secrets, which is the most that are kept", name, counted.N)
	}
	return counted, err
}

// DeleteSecret removes a secret.
func (s *Secrets) DeleteSecret(ctx context.Context, req *coordinatorv1.DeleteSecretRequest) (*coordinatorv1.DeleteSecretResponse, error) {
	if users := s.users(req.GetName()); len(users) > 0 && !req.GetForce() {
		return nil, fault.WithReason(fault.New(fault.Conflict, "delete secret %s: sandboxes refer to it: %s",
			req.GetName(), strings.Join(users, ", ")), "IN_USE")
	}
	for range maxRaces {
		old, _, err := s.deps.Store().Secret(ctx, req.GetName())
		if err == nil && old.Revision == 0 {
			return &coordinatorv1.DeleteSecretResponse{}, nil
		}
		if err == nil {
			err = s.deps.Store().DeleteSecret(ctx, old)
		}
		if fault.Reason(err) == store.ReasonRevision {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.deps.Log.Info("secret deleted", logging.Secret(req.GetName()), by(ctx))
		return &coordinatorv1.DeleteSecretResponse{}, nil
	}
	return nil, raced("delete secret " + req.GetName())
}

// users are the sandboxes that refer to a secret, some of them if there are many.
func (s *Secrets) users(name string) []string {
	const most = 10
	var users []string
	for sandbox, r := range s.deps.Door.Mirror.View().Records[record.Sandbox] {
		if references(r.GetSandbox().GetSpec())[name] != nil {
			users = append(users, sandbox)
		}
	}
	slices.Sort(users)
	if len(users) > most {
		users = append(users[:most], "…")
	}
	return users
}

// ListSecrets reads one page.
func (s *Secrets) ListSecrets(ctx context.Context, req *coordinatorv1.ListSecretsRequest) (*coordinatorv1.ListSecretsResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, fault.New(fault.Invalid, "list secrets: page_token is not one of ours; begin without one")
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	found, more, err := s.deps.Store().Secrets(ctx, string(after), min(size, maxPage))
	if err != nil {
		return nil, err
	}
	resp := &coordinatorv1.ListSecretsResponse{}
	for _, f := range found {
		about, err := decodeAbout(f)
		if err != nil {
			return nil, err
		}
		resp.Secrets = append(resp.Secrets, about)
	}
	if more {
		resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(found[len(found)-1].Name))
	}
	return resp, nil
}

// RotateSecretKey makes a new key and seals all secrets with it.
func (s *Secrets) RotateSecretKey(ctx context.Context, _ *coordinatorv1.RotateSecretKeyRequest) (*coordinatorv1.RotateSecretKeyResponse, error) {
	if err := s.keys.rotate(ctx, s.deps.Store()); err != nil {
		return nil, err
	}
	resp := &coordinatorv1.RotateSecretKeyResponse{KeyFile: s.keys.path}
	for after, more := "", true; more; {
		var page []store.Secret
		var err error
		if page, more, err = s.deps.Store().Secrets(ctx, after, maxPage); err != nil {
			return nil, err
		}
		for _, f := range page {
			after = f.Name
			if err := s.reseal(ctx, f.Name); err != nil {
				return nil, err
			}
			resp.Secrets++
		}
	}
	s.deps.Log.Info("secret key rotated", logging.Count(int(resp.GetSecrets())), logging.Path(resp.GetKeyFile()), by(ctx))
	return resp, nil
}

// reseal encrypts one secret anew. One that was put or removed meanwhile is done.
func (s *Secrets) reseal(ctx context.Context, name string) error {
	old, _, err := s.deps.Store().Secret(ctx, name)
	if err != nil || old.Revision == 0 {
		return err
	}
	entries, err := s.unseal(ctx, old)
	if err != nil {
		return err
	}
	if old.Sealed, err = s.seal(ctx, name, entries); err != nil {
		return err
	}
	if err := s.deps.Store().ResealSecret(ctx, old); fault.Reason(err) != store.ReasonRevision {
		return err
	}
	return nil
}

// bound is what a ciphertext is bound to.
func bound(name string) []byte { return []byte("staddle secret " + name) }

func (s *Secrets) seal(ctx context.Context, name string, entries []*resourcev1.SecretEntry) ([]byte, error) {
	cipher, err := s.keys.ready(ctx, s.deps.Store())
	if err != nil {
		return nil, err
	}
	plain, err := proto.Marshal(&resourcev1.SecretData{Name: name, Entries: entries})
	if err != nil {
		return nil, fault.New(fault.Internal, "encode secret %s", name)
	}
	sealed, err := cipher.Encrypt(plain, bound(name))
	if err != nil {
		return nil, fault.New(fault.Internal, "encrypt secret %s: %w", name, err)
	}
	return sealed, nil
}

func (s *Secrets) unseal(ctx context.Context, kept store.Secret) ([]*resourcev1.SecretEntry, error) {
	cipher, err := s.keys.ready(ctx, s.deps.Store())
	if err != nil {
		return nil, err
	}
	plain, err := cipher.Decrypt(kept.Sealed, bound(kept.Name))
	if err != nil { // another coordinator may have a newer key, and its file may be here by now
		s.keys.again()
		if cipher, err = s.keys.ready(ctx, s.deps.Store()); err != nil {
			return nil, err
		}
		plain, err = cipher.Decrypt(kept.Sealed, bound(kept.Name))
	}
	if err != nil {
		return nil, keysMissing("secret %s is encrypted by none of those in %s, or was changed in the store", kept.Name, s.keys.path)
	}
	data := &resourcev1.SecretData{}
	if err := proto.Unmarshal(plain, data); err != nil {
		return nil, fault.New(fault.Internal, "decode secret %s", kept.Name)
	}
	return data.GetEntries(), nil
}

func decodeAbout(kept store.Secret) (*coordinatorv1.Secret, error) {
	about := &coordinatorv1.Secret{}
	if err := proto.Unmarshal(kept.About, about); err != nil {
		return nil, fault.New(fault.Internal, "decode secret %s: %w", kept.Name, err)
	}
	about.Name, about.Revision = kept.Name, kept.Revision
	return about, nil
}

func raced(doing string) error {
	return fault.New(fault.Unavailable, "%s: others changed it %d times meanwhile", doing, maxRaces)
}
