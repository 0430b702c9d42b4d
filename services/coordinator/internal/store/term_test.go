package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/store"
)

func begin(t *testing.T, s *store.Store) string {
	t.Helper()
	term, err := s.BeginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func revision(t *testing.T, s *store.Store) uint64 {
	t.Helper()
	r, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestStore_ContainsThePositionsOfItsTerms(t *testing.T) {
	s, _ := start(t)
	first := begin(t, s)
	atFirst := revision(t, s)
	create(t, s, disk("d1"))
	late := revision(t, s)
	second := begin(t, s)
	atSecond := revision(t, s)
	for _, c := range []struct {
		name     string
		term     string
		revision uint64
		want     bool
	}{
		{"where the first term begins", first, atFirst, true},
		{"the last of the first term", first, late, true},
		{"before the first term", first, atFirst - 1, false},
		{"the first term, where the second had begun", first, atSecond, false},
		{"the second term before it began", second, late, false},
		{"where the second term begins", second, atSecond, true},
		{"a revision that is to come", second, atSecond + 1, false},
		{"a term that was never here", "01JT0000000000000000000001", late, false},
	} {
		err := s.Contains(t.Context(), c.term, c.revision)
		if c.want && err != nil || !c.want && (!errors.Is(err, fault.Conflict) || fault.Reason(err) != store.ReasonOtherHistory) {
			t.Errorf("%s: got %v, want contained %v", c.name, err, c.want)
		}
	}
}

func TestStore_AFailedQuestionSaysNothingOfTheHistory(t *testing.T) {
	nobody, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nobody.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = store.New(nobody, "/test/").Contains(ctx, "01JT0000000000000000000001", 1)
	if !errors.Is(err, fault.Unavailable) || fault.Reason(err) != "" {
		t.Errorf("got %v, want Unavailable without a reason", err)
	}
}

func TestStore_DropsTheOldestTerms(t *testing.T) {
	const kept, more = 4096, 100
	s, etcd := start(t)
	for from := 0; from < kept+more; from += more {
		var puts []clientv3.Op
		for i := range more {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("/test/term/%026d", from+i), ""))
		}
		if _, err := etcd.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		begin(t, s)
	}
	resp, err := etcd.Get(t.Context(), "/test/term/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != kept {
		t.Errorf("%d terms are kept, want %d", len(resp.Kvs), kept)
	}
}
