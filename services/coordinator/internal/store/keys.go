package store

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/coordinator/internal/record"
)

// keys is the layout below one prefix. The words of records, sessions, removed
// nodes and terms are neighbours, so that one range holds all that is watched.
//
//	c/<claim>     uid and name of the record that has what no two may have
//	i             name of the history
//	k             witness of the keys of secrets
//	l/            election of the leading coordinator
//	q/<hash>      uid made for a request id
//	r/<kind>/<n>  record
//	s/<node>      open session of a node
//	t/<node>      mark that the node was removed
//	term/<ulid>   term, by the revision at which it begins
//	u/<uid>       kind and name of a record
//	v/<name>      encrypted values of a secret
//	w/<name>      what else is known of a secret
type keys struct{ prefix string }

func (k keys) claim(c string) string        { return k.prefix + "c/" + c }
func (k keys) incarnation() string          { return k.prefix + "i" }
func (k keys) witness() string              { return k.prefix + "k" }
func (k keys) sealed(secret string) string  { return k.prefix + "v/" + secret }
func (k keys) aboutSecret(s string) string  { return k.prefix + "w/" + s }
func (k keys) uid(uid string) string        { return k.prefix + "u/" + uid }
func (k keys) session(node string) string   { return k.prefix + "s/" + node }
func (k keys) removed(node string) string   { return k.prefix + "t/" + node }
func (k keys) term(id string) string        { return k.prefix + "term/" + id }
func (k keys) kind(kind record.Kind) string { return k.prefix + "r/" + record.Word(kind) + "/" }
func (k keys) record(key record.Key) string { return k.kind(key.Kind) + key.Name }

// request hides what callers write behind a hash: the text may be anything.
func (k keys) request(id string) string {
	sum := sha256.Sum256([]byte(id))
	return k.prefix + "q/" + hex.EncodeToString(sum[:])
}

// watched is the range of everything that the mirror follows.
func (k keys) watched() (from, to string) { return k.prefix + "r/", k.prefix + "u/" }

func encodeKey(key record.Key) string { return record.Word(key.Kind) + "/" + key.Name }

func decodeKey(text string) (record.Key, error) {
	word, name, ok := strings.Cut(text, "/")
	kind, known := record.KindOfWord(word)
	if !ok || !known {
		return record.Key{}, fault.New(fault.Internal, "read key %.80q: no kind and name", text)
	}
	return record.Key{Kind: kind, Name: name}, nil
}

// encodeRecord leaves the revision out: it is the store's to say.
func encodeRecord(r *record.Resource) (string, error) {
	bare := withRevision(r, 0)
	value, err := proto.Marshal(bare)
	if err != nil {
		return "", fault.New(fault.Invalid, "encode %s: %w", record.KeyOf(r), err)
	}
	if len(value) > maxRecord {
		return "", fault.New(fault.Invalid, "encode %s: it has %d bytes, at most %d are kept", record.KeyOf(r), len(value), maxRecord)
	}
	return string(value), nil
}

func decodeRecord(kv *mvccpb.KeyValue) (*record.Resource, error) {
	r := &resourcev1.Resource{}
	if err := proto.Unmarshal(kv.Value, r); err != nil {
		return nil, fault.New(fault.Internal, "decode %s: %w", kv.Key, err)
	}
	if r.Meta == nil || record.Body(r) != r.Meta.Kind {
		return nil, fault.New(fault.Internal, "decode %s: it is no record of a kind known here", kv.Key)
	}
	r.Meta.Revision = uint64(kv.ModRevision)
	return r, nil
}
