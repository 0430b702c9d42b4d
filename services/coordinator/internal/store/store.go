// Package store owns how records lie in etcd: which keys they have, that uid and
// name never disagree, and that every change is a compare-and-set.
//
// One record is one key, whose value is the record without its revision; an
// index entry per uid, written in the same transaction, finds it again. Sessions
// and the marks of removed nodes lie beside the records, so that one watch sees
// all three in the order of the history. It must never decide what a caller may
// do or what a record should say. In the trail it is where a wish becomes
// durable.
package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/services/coordinator/internal/record"
)

const (
	// maxRecord bounds the value of one key: etcd takes 1.5 MiB per request. It is
	// far above what callers may ask for, so that placement and status always fit.
	maxRecord = 384 << 10
	// maxChanges bounds the records of one transaction: each takes up to two of
	// etcd's 128 operations.
	maxChanges = 60
	// maxPage bounds one read.
	maxPage = 1000
	// askLimit bounds one question to etcd.
	askLimit = 10 * time.Second
)

// Reasons of Conflict.
const (
	// ReasonRevision means that the record was changed meanwhile.
	ReasonRevision = "REVISION"
	// ReasonCompacted means that the asked history is not kept any more.
	ReasonCompacted = "COMPACTED"
	// ReasonClaimed means that another record has what only one may have.
	ReasonClaimed = "CLAIMED"
	// ReasonFull, of Unavailable, means that the store takes no more writes.
	ReasonFull = "STORE_FULL"
)

// Store reads and writes records. It has no state but the layout of its keys.
type Store struct {
	etcd   *clientv3.Client
	keys   keys
	repeat repeats
	turn   chan struct{} // full while somebody has it
}

// New returns the store below prefix, which ends with a slash.
func New(etcd *clientv3.Client, prefix string) *Store {
	return &Store{etcd: etcd, keys: keys{prefix}, turn: make(chan struct{}, 1)}
}

// Get returns one record by name, as of now.
func (s *Store) Get(ctx context.Context, key record.Key) (*record.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.record(key))
	if err != nil {
		return nil, asked("get "+key.String(), err)
	}
	if len(resp.Kvs) == 0 {
		return nil, fault.New(fault.NotFound, "get %s: there is no such record", key)
	}
	return decodeRecord(resp.Kvs[0])
}

// GetUID returns one record by uid, as of now. A record of another kind, or
// another record that has the name now, is not it.
func (s *Store) GetUID(ctx context.Context, kind record.Kind, uid string) (*record.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	gone := fault.New(fault.NotFound, "get %s %s: there is no record with that uid", record.Word(kind), uid)
	resp, err := s.etcd.Get(ctx, s.keys.uid(uid))
	if err != nil {
		return nil, asked("get uid "+uid, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, gone
	}
	key, err := decodeKey(string(resp.Kvs[0].Value))
	if err != nil {
		return nil, err
	}
	if key.Kind != kind {
		return nil, gone
	}
	r, err := s.Get(ctx, key)
	if errors.Is(err, fault.NotFound) {
		return nil, gone
	}
	if err == nil && r.GetMeta().GetUid() != uid {
		return nil, gone
	}
	return r, err
}

// Change is what one transaction does. All of it happens, or nothing.
type Change struct {
	// Create must not be there, by key and by uid.
	Create []*record.Resource
	// Replace and Remove must still have the revision that they carry.
	Replace, Remove []*record.Resource
	// Same must still have the revision that they carry, and are not written.
	Same []*record.Resource
	// NoneSince are counts that nothing was added to since they were taken.
	NoneSince []Counted
	// claim and release are what a record of Replace has more and less than before.
	claim   []claim
	release []string
	// Forget and Admit write and remove the mark that a node was removed; each
	// is the node's name.
	Forget, Admit string
}

// Commit applies c and returns the revision of the whole. Conflict with reason
// REVISION says that one of its conditions did not hold, and that nothing was
// written.
func (s *Store) Commit(ctx context.Context, c Change) (uint64, error) {
	cmps, ops, err := s.compile(c)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return 0, asked("write records", err)
	}
	if !resp.Succeeded {
		return 0, stale("write records: one of them was changed meanwhile")
	}
	return uint64(resp.Header.Revision), nil
}

func (s *Store) compile(c Change) ([]clientv3.Cmp, []clientv3.Op, error) {
	if n := len(c.Create) + len(c.Replace) + len(c.Remove); n > maxChanges {
		return nil, nil, fault.New(fault.Internal, "write records: %d at once are more than %d", n, maxChanges)
	}
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	for _, r := range slices.Concat(c.Create, c.Replace) {
		value, err := encodeRecord(r)
		if err != nil {
			return nil, nil, err
		}
		cmps = append(cmps, s.unchanged(r))
		ops = append(ops, clientv3.OpPut(s.keys.record(record.KeyOf(r)), value))
	}
	for _, r := range c.Create {
		uid := s.keys.uid(r.GetMeta().GetUid())
		cmps = append(cmps, absent(uid))
		ops = append(ops, clientv3.OpPut(uid, encodeKey(record.KeyOf(r))))
	}
	for _, r := range c.Remove {
		cmps = append(cmps, s.unchanged(r))
		ops = append(ops, clientv3.OpDelete(s.keys.record(record.KeyOf(r))), clientv3.OpDelete(s.keys.uid(r.GetMeta().GetUid())))
	}
	for _, one := range c.claims() {
		cmps = append(cmps, absent(s.keys.claim(one.what)))
		ops = append(ops, clientv3.OpPut(s.keys.claim(one.what), one.owner))
	}
	for _, what := range c.releases() {
		ops = append(ops, clientv3.OpDelete(s.keys.claim(what)))
	}
	for _, counted := range c.NoneSince {
		cmps = append(cmps, counted.noneSince())
	}
	for _, r := range c.Same {
		cmps = append(cmps, s.unchanged(r))
	}
	if c.Forget != "" {
		ops = append(ops, clientv3.OpPut(s.keys.removed(c.Forget), time.Now().UTC().Format(time.RFC3339)))
	}
	if c.Admit != "" {
		ops = append(ops, clientv3.OpDelete(s.keys.removed(c.Admit)))
	}
	return cmps, ops, nil
}

// unchanged compares with the revision that r carries; 0 means: not there.
func (s *Store) unchanged(r *record.Resource) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(s.keys.record(record.KeyOf(r))), "=", int64(r.GetMeta().GetRevision()))
}

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// Replace writes one record, if it still has its revision, and returns it with
// the new one. The argument stays as it is.
func (s *Store) Replace(ctx context.Context, r *record.Resource) (*record.Resource, error) {
	rev, err := s.Commit(ctx, Change{Replace: []*record.Resource{r}})
	if err != nil {
		return nil, fault.WithReason(fault.New(fault.KindOf(err), "replace %s: %w", record.KeyOf(r), err), fault.Reason(err))
	}
	return withRevision(r, rev), nil
}

// Page is a part of the records of one kind, in the order of their names.
type Page struct {
	Records  []*record.Resource
	More     bool
	Revision uint64
}

// List returns up to limit records of a kind after a name, as of a revision; 0
// means as of now. Conflict with reason COMPACTED says that the revision is not
// kept any more.
func (s *Store) List(ctx context.Context, kind record.Kind, after string, limit int, revision uint64) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	folder := s.keys.kind(kind)
	from := folder
	if after != "" {
		from = folder + after + "\x00"
	}
	resp, err := s.etcd.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(folder)),
		clientv3.WithLimit(int64(min(limit, maxPage))), clientv3.WithRev(int64(revision)))
	if err != nil {
		return Page{}, asked("list records of kind "+record.Word(kind), err)
	}
	page := Page{More: resp.More, Revision: revision}
	if revision == 0 {
		page.Revision = uint64(resp.Header.Revision)
	}
	for _, kv := range resp.Kvs {
		r, err := decodeRecord(kv)
		if err != nil {
			return Page{}, err
		}
		page.Records = append(page.Records, r)
	}
	return page, nil
}

// Current returns the newest revision of the history.
func (s *Store) Current(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.keys.incarnation(), clientv3.WithCountOnly())
	if err != nil {
		return 0, asked("ask for the revision", err)
	}
	return uint64(resp.Header.Revision), nil
}

// Newest returns the revision of the newest write to anything that is there and
// watched: a mirror that has reached it has missed no record.
func (s *Store) Newest(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	from, to := s.keys.watched()
	resp, err := s.etcd.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1))
	if err != nil {
		return 0, asked("ask for the newest record", err)
	}
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return uint64(resp.Kvs[0].ModRevision), nil
}

// Incarnation returns the name of this history, giving it one at first use.
func (s *Store) Incarnation(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	key := s.keys.incarnation()
	resp, err := s.etcd.Txn(ctx).If(absent(key)).
		Then(clientv3.OpPut(key, id.New()), clientv3.OpGet(key)).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return "", asked("ask for the incarnation", err)
	}
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs()
	if len(kvs) != 1 {
		return "", fault.New(fault.Internal, "ask for the incarnation: %d values", len(kvs))
	}
	return string(kvs[0].Value), nil
}

// asked turns what etcd said into a kind. Everything but a compacted revision
// means that the question was not answered.
func asked(what string, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev):
		return fault.WithReason(fault.New(fault.Conflict, "%s: that revision is not kept: %w", what, err), ReasonCompacted)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fault.WithReason(fault.New(fault.Unavailable, "%s: the store is full: %w", what, err), ReasonFull)
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fault.New(fault.Internal, "%s: %w", what, err)
	}
	return fault.New(fault.Unavailable, "%s: %w", what, err)
}

func stale(text string) error {
	return fault.WithReason(fault.New(fault.Conflict, "%s", text), ReasonRevision)
}

func withRevision(r *record.Resource, revision uint64) *record.Resource {
	out := proto.CloneOf(r)
	out.Meta.Revision = revision
	return out
}

// repeats shares one lease among the request ids of some minutes: a lease of its
// own for each would be one more write per request.
type repeats struct {
	mu      sync.Mutex // guards all below
	lease   clientv3.LeaseID
	granted time.Time
}
