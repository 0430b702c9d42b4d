package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"go.etcd.io/bbolt"

	"staddle.internal/kit/fault"
)

func openInside(t *testing.T) *Journal {
	t.Helper()
	j, _, err := Open(Options{Path: filepath.Join(t.TempDir(), "notes.db"), Kind: "test", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// together runs the functions so that all wait for the writer at once, and
// returns what each Update returned or panicked with.
func together(t *testing.T, j *Journal, fns ...func(Tx) error) []any {
	t.Helper()
	let, results := make(chan struct{}), make([]any, len(fns))
	var group sync.WaitGroup
	group.Go(func() { // keeps the writer busy until all wait
		if err := j.Update(func(Tx) error { <-let; return nil }); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	for i, fn := range fns {
		group.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					results[i] = p
				}
			}()
			if err := j.Update(fn); err != nil {
				results[i] = err
			}
		})
	}
	synctest.Wait()
	close(let)
	group.Wait()
	return results
}

func TestUpdate_ManyWaitersShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := openInside(t)
		ids := make(map[int]int)
		var fns []func(Tx) error
		for i := range 100 {
			fns = append(fns, func(tx Tx) error {
				ids[tx.tx.ID()]++ // only the writer touches it
				return tx.Put("b", fmt.Sprint(i), []byte("x"))
			})
		}
		for i, got := range together(t, j, fns...) {
			if got != nil {
				t.Errorf("update %d: %v", i, got)
			}
		}
		if len(ids) != 1 {
			t.Errorf("100 waiting updates took %d transactions: %v", len(ids), ids)
		}
		requireNotes(t, j, 100)
	})
}

func TestUpdate_AFailureFailsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := openInside(t)
		boom := errors.New("boom")
		var fns []func(Tx) error
		for i := range 30 {
			fns = append(fns, func(tx Tx) error {
				if err := tx.Put("b", fmt.Sprint(i), []byte("x")); err != nil {
					return err
				}
				switch i % 3 {
				case 1:
					return boom
				case 2:
					panic("ouch")
				}
				return nil
			})
		}
		want := []any{nil, boom, "ouch"}
		for i, got := range together(t, j, fns...) {
			if got != want[i%3] {
				t.Errorf("update %d: got %v, want %v", i, got, want[i%3])
			}
		}
		requireNotes(t, j, 10)
	})
}

func TestUpdate_ThatWaitsAtCloseIsAnsweredEitherWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := openInside(t)
		let := make(chan struct{})
		var group sync.WaitGroup
		var first, second error
		group.Go(func() { first = j.Update(func(tx Tx) error { <-let; return tx.Put("b", "1", nil) }) })
		synctest.Wait()
		group.Go(func() { second = j.Update(func(tx Tx) error { return tx.Put("b", "2", nil) }) })
		synctest.Wait()
		group.Go(func() {
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(let)
		group.Wait()
		if first != nil {
			t.Errorf("a change taken before Close failed: %v", first)
		}
		if !errors.Is(second, fault.Unavailable) {
			t.Errorf("a change that was not taken: %v, want Unavailable", second)
		}
	})
}

func requireNotes(t *testing.T, j *Journal, want int) {
	t.Helper()
	n := 0
	err := j.View(func(tx Tx) error { return tx.ForEach("b", func(string, []byte) error { n++; return nil }) })
	if err != nil || n != want {
		t.Errorf("journal has %d notes, %v, want %d", n, err, want)
	}
}

func TestTx_DamagedNoteIsNotAMissingOne(t *testing.T) {
	j := openInside(t)
	err := j.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		if err != nil {
			return err
		}
		return errors.Join(b.Put([]byte("short"), []byte("x")), b.Put([]byte("moved"), seal("b", "other", []byte("v"))))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"short", "moved"} {
		// A function that believes what it reads: nothing there, so make one.
		makeOne := func(tx Tx) error {
			if tx.Get("b", key) == nil {
				return tx.Put("made", key, nil)
			}
			return nil
		}
		if err := j.Update(makeOne); !errors.Is(err, errDamaged) {
			t.Errorf("%s: Update = %v, want that the note is damaged", key, err)
		}
	}
	err = j.View(func(tx Tx) error {
		return tx.ForEach("made", func(k string, _ []byte) error { return fmt.Errorf("%s was made", k) })
	})
	if err != nil {
		t.Error(err)
	}
	if err := j.View(func(tx Tx) error { return tx.ForEach("b", func(string, []byte) error { return nil }) }); !errors.Is(err, errDamaged) {
		t.Errorf("ForEach = %v, want that a note is damaged", err)
	}
}
