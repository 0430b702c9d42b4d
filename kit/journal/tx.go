package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
)

// Tx is one transaction: a consistent state, and in Update the changes to it. It
// ends when the function that got it returns. What it returns are copies.
type Tx struct {
	tx *bbolt.Tx
	st *state
}

// state remembers that a note could not be read, so that a function that took a
// damaged note for a missing one changes nothing.
type state struct{ damage error }

func (t Tx) run(fn func(Tx) error) error {
	if err := fn(t); err != nil {
		return err
	}
	return t.st.damage
}

// Get returns the value of key, or nil if there is none; an empty value is not
// nil. If the value is damaged it returns nil and the whole transaction fails.
func (t Tx) Get(bucket, key string) []byte {
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	stored := b.Get([]byte(key))
	if stored == nil {
		return nil
	}
	v, err := unseal(bucket, key, stored)
	if err != nil {
		t.st.damage = err
		return nil
	}
	return v
}

// Put writes the value of key, in place of any other.
func (t Tx) Put(bucket, key string, v []byte) error {
	if err := checkNames(bucket, key); err != nil {
		return err
	}
	b, err := t.tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return fmt.Errorf("put note %s/%s: %w", bucket, key, err)
	}
	if err := b.Put([]byte(key), seal(bucket, key, v)); err != nil {
		return fmt.Errorf("put note %s/%s: %w", bucket, key, err)
	}
	return nil
}

// Delete removes key. To remove a missing one does nothing.
func (t Tx) Delete(bucket, key string) error {
	if err := checkNames(bucket, key); err != nil {
		return err
	}
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	if err := b.Delete([]byte(key)); err != nil {
		return fmt.Errorf("delete note %s/%s: %w", bucket, key, err)
	}
	return nil
}

// ForEach calls fn with every key of the bucket in order, as they were at the
// call: fn may change the bucket. It stops at the first error and returns it.
func (t Tx) ForEach(bucket string, fn func(key string, v []byte) error) error {
	type pair struct {
		key   string
		value []byte
	}
	var pairs []pair
	b := t.tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	err := b.ForEach(func(k, stored []byte) error {
		v, err := unseal(bucket, string(k), stored)
		pairs = append(pairs, pair{string(k), v})
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range pairs {
		if err := fn(p.key, p.value); err != nil {
			return err
		}
	}
	return nil
}

// PutProto writes a message as the value of key.
func PutProto(tx Tx, bucket, key string, m proto.Message) error {
	v, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("put note %s/%s: %w", bucket, key, err)
	}
	return tx.Put(bucket, key, v)
}

// GetProto returns the message that is the value of key, and whether there is
// one. M is a pointer to a generated type, as in GetProto[*notev1.Wish].
func GetProto[M proto.Message](tx Tx, bucket, key string) (m M, found bool, err error) {
	v := tx.Get(bucket, key)
	if v == nil {
		return m, false, tx.st.damage
	}
	m, err = decode[M](bucket, key, v)
	return m, err == nil, err
}

// ForEachProto is ForEach with each value decoded.
func ForEachProto[M proto.Message](tx Tx, bucket string, fn func(key string, m M) error) error {
	return tx.ForEach(bucket, func(key string, v []byte) error {
		m, err := decode[M](bucket, key, v)
		if err != nil {
			return err
		}
		return fn(key, m)
	})
}

func decode[M proto.Message](bucket, key string, v []byte) (M, error) {
	var none M
	m := none.ProtoReflect().Type().New().Interface()
	if err := proto.Unmarshal(v, m); err != nil {
		return none, fmt.Errorf("read note %s/%s: %w", bucket, key, err)
	}
	return m.(M), nil
}

// checkNames keeps our own bucket out of reach.
func checkNames(bucket, key string) error {
	if bucket == "" || bucket == metaBucket || key == "" {
		return fault.New(fault.Invalid, "note %q/%q: bucket and key must have names", bucket, key)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sumSize = 4

func sum(bucket, key string, v []byte) uint32 {
	s := crc32.Update(0, castagnoli, []byte(bucket+"\x00"+key+"\x00"))
	return crc32.Update(s, castagnoli, v)
}

// seal puts the checksum before the value; it covers the names as well, so that
// a value found in a wrong place is damage too.
func seal(bucket, key string, v []byte) []byte {
	out := make([]byte, sumSize, sumSize+len(v))
	binary.BigEndian.PutUint32(out, sum(bucket, key, v))
	return append(out, v...)
}

// unseal returns a copy of the value.
func unseal(bucket, key string, stored []byte) ([]byte, error) {
	if len(stored) < sumSize {
		return nil, fmt.Errorf("read note %s/%s: %w", bucket, key, errDamaged)
	}
	v := append([]byte{}, stored[sumSize:]...)
	if binary.BigEndian.Uint32(stored) != sum(bucket, key, v) {
		return nil, fmt.Errorf("read note %s/%s: checksum: %w", bucket, key, errDamaged)
	}
	return v, nil
}
