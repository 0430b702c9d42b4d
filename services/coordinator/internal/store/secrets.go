package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"
)

// Secret is what lies in etcd of one secret: what everybody of the coordinator may
// know, and the encrypted values, which only their reader understands.
type Secret struct {
	Name string
	// About is what is known beside the values, as its writer encoded it.
	About []byte
	// Sealed is the encrypted values; empty where it was not asked for.
	Sealed []byte
	// Revision of About, 0 for one that is not there. SealedRevision is that of Sealed.
	Revision, SealedRevision uint64
}

// Secret returns one secret as of now, and the revision of the history at which it was
// read. One that is not there has Revision 0.
func (s *Store) Secret(ctx context.Context, name string) (Secret, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	found := Secret{Name: name}
	resp, err := s.etcd.Txn(ctx).Then(clientv3.OpGet(s.keys.aboutSecret(name)), clientv3.OpGet(s.keys.sealed(name))).Commit()
	if err != nil {
		return found, 0, asked("get secret "+name, err)
	}
	about, sealed := resp.Responses[0].GetResponseRange().GetKvs(), resp.Responses[1].GetResponseRange().GetKvs()
	if len(about) == 1 && len(sealed) == 1 {
		found.About, found.Revision = about[0].Value, uint64(about[0].ModRevision)
		found.Sealed, found.SealedRevision = sealed[0].Value, uint64(sealed[0].ModRevision)
	}
	return found, uint64(resp.Header.Revision), nil
}

// PutSecret writes a secret that still has its revisions, and returns the new one. A count that is
// given must still be true: nothing was added to it since.
func (s *Store) PutSecret(ctx context.Context, next Secret, noneSince ...Counted) (uint64, error) {
	return s.changeSecret(ctx, next, noneSince, clientv3.OpPut(s.keys.aboutSecret(next.Name), string(next.About)),
		clientv3.OpPut(s.keys.sealed(next.Name), string(next.Sealed)))
}

// ResealSecret replaces the encrypted values alone: for who reads it nothing changes.
func (s *Store) ResealSecret(ctx context.Context, next Secret) error {
	_, err := s.changeSecret(ctx, next, nil, clientv3.OpPut(s.keys.sealed(next.Name), string(next.Sealed)))
	return err
}

// DeleteSecret removes a secret that still has its revisions.
func (s *Store) DeleteSecret(ctx context.Context, old Secret) error {
	_, err := s.changeSecret(ctx, old, nil, clientv3.OpDelete(s.keys.aboutSecret(old.Name)), clientv3.OpDelete(s.keys.sealed(old.Name)))
	return err
}

// changeSecret returns Conflict with reason REVISION if the secret was changed
// meanwhile, or one was added to what was counted.
func (s *Store) changeSecret(ctx context.Context, next Secret, noneSince []Counted, ops ...clientv3.Op) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	same := func(key string, revision uint64) clientv3.Cmp {
		return clientv3.Compare(clientv3.ModRevision(key), "=", int64(revision))
	}
	cmps := []clientv3.Cmp{same(s.keys.aboutSecret(next.Name), next.Revision), same(s.keys.sealed(next.Name), next.SealedRevision)}
	for _, counted := range noneSince {
		cmps = append(cmps, counted.noneSince())
	}
	resp, err := s.etcd.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return 0, asked("write secret "+next.Name, err)
	}
	if !resp.Succeeded {
		return 0, stale("write secret " + next.Name + ": it was changed meanwhile")
	}
	return uint64(resp.Header.Revision), nil
}

// Secrets returns up to limit secrets after a name, ordered by name, without their
// values, and whether there are more.
func (s *Store) Secrets(ctx context.Context, after string, limit int) (found []Secret, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	folder := s.keys.aboutSecret("")
	from := folder
	if after != "" {
		from = folder + after + "\x00"
	}
	resp, err := s.etcd.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(folder)), clientv3.WithLimit(int64(min(limit, maxPage))))
	if err != nil {
		return nil, false, asked("list secrets", err)
	}
	for _, kv := range resp.Kvs {
		found = append(found, Secret{Name: string(kv.Key[len(folder):]), About: kv.Value, Revision: uint64(kv.ModRevision)})
	}
	return found, resp.More, nil
}

// AwaitSecret returns when one of the secrets has changed since a revision. Unavailable
// says that nobody can tell.
func (s *Store) AwaitSecret(ctx context.Context, names map[string]bool, since uint64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	folder := s.keys.aboutSecret("")
	for resp := range s.etcd.Watch(ctx, folder, clientv3.WithPrefix(), clientv3.WithRev(int64(since)+1)) {
		if err := resp.Err(); err != nil {
			return asked("watch secrets", err)
		}
		for _, ev := range resp.Events {
			if names[string(ev.Kv.Key[len(folder):])] {
				return nil
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fault.New(fault.Unavailable, "watch secrets: the store ended the watch")
}

// Witness returns what proves the keys of secrets, nil if there is none.
func (s *Store) Witness(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.witness())
	if err != nil {
		return nil, asked("get the witness of keys", err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	return resp.Kvs[0].Value, nil
}

// MakeWitness writes it unless there is one, and says whether it did.
func (s *Store) MakeWitness(ctx context.Context, sealed []byte) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Txn(ctx).If(absent(s.keys.witness())).Then(clientv3.OpPut(s.keys.witness(), string(sealed))).Commit()
	if err != nil {
		return false, asked("write the witness of keys", err)
	}
	return resp.Succeeded, nil
}

// SetWitness writes it.
func (s *Store) SetWitness(ctx context.Context, sealed []byte) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, err := s.etcd.Put(ctx, s.keys.witness(), string(sealed)); err != nil {
		return asked("write the witness of keys", err)
	}
	return nil
}
