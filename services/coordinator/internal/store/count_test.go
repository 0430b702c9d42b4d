package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

var errFull = errors.New("full")

// createWithin creates a disk unless there are as many as may be.
func createWithin(t *testing.T, s *store.Store, most int64, name string) error {
	for {
		counted, err := s.Count(t.Context(), record.Disk)
		if err != nil {
			return err
		}
		if counted.N >= most {
			return errFull
		}
		r := disk(name)
		if _, err = s.Create(t.Context(), r, store.Change{NoneSince: []store.Counted{counted}}, "", r); fault.Reason(err) != store.ReasonRevision {
			return err
		}
	}
}

// putWithin makes a secret, likewise.
func putWithin(t *testing.T, s *store.Store, most int64, name string) error {
	for {
		counted, err := s.CountSecrets(t.Context())
		if err != nil {
			return err
		}
		if counted.N >= most {
			return errFull
		}
		if _, err = s.PutSecret(t.Context(), store.Secret{Name: name, About: []byte("a"), Sealed: []byte("s")}, counted); fault.Reason(err) != store.ReasonRevision {
			return err
		}
	}
}

// Many that count and create at once, at two coordinators, are as many as may be in the end and
// none more, whatever was there before; what is deleted makes room.
func TestStore_NoneMoreThanMayBe(t *testing.T) {
	one, client := start(t)
	stores := []*store.Store{one, store.New(client, "/test/")}
	const before, most, many = 2, 7, 24
	var first *record.Resource
	for i := range before {
		first = create(t, one, disk(fmt.Sprintf("before%d", i))) // by who counts nothing
		if _, err := one.PutSecret(t.Context(), store.Secret{Name: fmt.Sprintf("before%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	all := func(what string, within func(*testing.T, *store.Store, int64, string) error) {
		t.Helper()
		var mu sync.Mutex // guards in and full
		var in, full int
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() { // waited for below
				err := within(t, stores[i%2], most, fmt.Sprintf("d%d", i))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					in++
				case errors.Is(err, errFull):
					full++
				default:
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
		if in != most-before || full != many-in {
			t.Errorf("%s: %d got in and %d found it full, want %d and %d", what, in, full, most-before, many-most+before)
		}
	}
	all("records", createWithin)
	all("secrets", putWithin)
	if counted, err := one.Count(t.Context(), record.Disk); err != nil || counted.N != most {
		t.Errorf("counted %d, %v, want %d", counted.N, err, most)
	}
	old, _, err := one.Secret(t.Context(), "before0")
	_, commitErr := one.Commit(t.Context(), store.Change{Remove: []*record.Resource{first}})
	if err := errors.Join(err, commitErr, one.DeleteSecret(t.Context(), old)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{nil, errFull} {
		name := fmt.Sprintf("after-%v", want != nil)
		if err := createWithin(t, one, most, name); !errors.Is(err, want) {
			t.Errorf("a record after one was deleted: got %v, want %v", err, want)
		}
		if err := putWithin(t, one, most, name); !errors.Is(err, want) {
			t.Errorf("a secret after one was deleted: got %v, want %v", err, want)
		}
	}
	// A change of what is there is no addition.
	counted, err := one.CountSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if old, _, err = one.Secret(t.Context(), "before1"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.PutSecret(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if _, err := one.PutSecret(t.Context(), store.Secret{Name: "changed"}, counted); err != nil {
		t.Errorf("only a change came between: %v", err)
	}
	// A name that is taken is said to be, with room or without.
	r := disk("before0")
	if _, err := one.Create(t.Context(), r, store.Change{NoneSince: []store.Counted{counted}}, "", r); !errors.Is(err, fault.Exists) {
		t.Errorf("the same name: got %v, want Exists", err)
	}
}
