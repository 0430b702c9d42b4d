package store

import (
	"context"
	"errors"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// A claim is a key that is there while a record has what no other may have. It is written
// and removed in the transaction that writes the record: so two that ask at once never
// both get it, whichever coordinator they ask.

// claim is what is claimed, and by whom.
type claim struct{ what, owner string }

func claimsOf(r *record.Resource, all []string) []claim {
	claims := make([]claim, len(all))
	for i, what := range all {
		claims[i] = claim{what, r.GetMeta().GetUid() + " " + r.GetMeta().GetName()}
	}
	return claims
}

func (c Change) claims() []claim {
	all := slices.Clone(c.claim)
	for _, r := range c.Create {
		all = append(all, claimsOf(r, record.Claims(r))...)
	}
	return all
}

func (c Change) releases() []string {
	all := slices.Clone(c.release)
	for _, r := range c.Remove {
		all = append(all, record.Claims(r)...)
	}
	return all
}

// Update is Replace of a record that was old, of which claims may differ. Conflict with
// reason CLAIMED says that another record has one.
func (s *Store) Update(ctx context.Context, old, next *record.Resource) (*record.Resource, error) {
	before, after := record.Claims(old), record.Claims(next)
	if slices.Equal(before, after) {
		return s.Replace(ctx, next)
	}
	c := Change{
		Replace: []*record.Resource{next},
		claim:   claimsOf(next, without(after, before)), release: without(before, after),
	}
	rev, err := s.Commit(ctx, c)
	if fault.Reason(err) == ReasonRevision {
		if others := s.others(ctx, next); others != nil {
			return nil, others
		}
	}
	if err != nil {
		return nil, fault.WithReason(fault.New(fault.KindOf(err), "replace %s: %w", record.KeyOf(next), err), fault.Reason(err))
	}
	return withRevision(next, rev), nil
}

func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(what string) bool { return slices.Contains(others, what) })
}

// refused says why a record was not created.
func (s *Store) refused(ctx context.Context, r *record.Resource, c Change) error {
	if len(record.Claims(r)) == 0 && len(c.NoneSince) == 0 {
		return taken(r)
	}
	switch _, err := s.Get(ctx, record.KeyOf(r)); {
	case err == nil:
		return taken(r)
	case !errors.Is(err, fault.NotFound):
		return err
	}
	if others := s.others(ctx, r); others != nil {
		return others
	}
	return stale("create " + record.KeyOf(r).String() + ": what was in its way is gone")
}

// ClaimError says who has what a record asked for.
type ClaimError struct {
	// Record that asked.
	Record *record.Resource
	// Owners are the names of those who have it, by claim.
	Owners map[string]string
}

// Error names all claims and owners.
func (e *ClaimError) Error() string {
	var parts []string
	for _, what := range record.Claims(e.Record) {
		if owner, ok := e.Owners[what]; ok {
			parts = append(parts, record.ClaimText(what)+" is taken by "+record.Word(e.Record.GetMeta().GetKind())+" "+owner)
		}
	}
	return record.KeyOf(e.Record).String() + ": " + strings.Join(parts, "; ")
}

// others returns a *ClaimError if others have claims of a record, nil if nobody has, or
// why that is not known.
func (s *Store) others(ctx context.Context, r *record.Resource) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	claims := record.Claims(r)
	if len(claims) == 0 {
		return nil
	}
	ops := make([]clientv3.Op, len(claims))
	for i, what := range claims {
		ops[i] = clientv3.OpGet(s.keys.claim(what))
	}
	resp, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return asked("ask who has claims of "+record.KeyOf(r).String(), err)
	}
	owners := map[string]string{}
	for i, answer := range resp.Responses {
		for _, kv := range answer.GetResponseRange().GetKvs() {
			if uid, name, _ := strings.Cut(string(kv.Value), " "); uid != r.GetMeta().GetUid() {
				owners[claims[i]] = name
			}
		}
	}
	if len(owners) == 0 {
		return nil
	}
	return fault.WithReason(fault.New(fault.Conflict, "%w", &ClaimError{Record: r, Owners: owners}), ReasonClaimed)
}

// Claimed lists what is claimed of a kind of claims, without its beginning.
func (s *Store) Claimed(ctx context.Context, beginning string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	folder := s.keys.claim(beginning)
	resp, err := s.etcd.Get(ctx, folder, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, asked("list claims of "+beginning, err)
	}
	all := make(map[string]bool, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		all[strings.TrimPrefix(string(kv.Key), folder)] = true
	}
	return all, nil
}
