package journal_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
)

func TestPeek_ReadsAndChangesNothing(t *testing.T) {
	path := newPath(t)
	o := options(path)
	j, _ := open(t, o)
	put(t, j, "b", "k", "v")

	var got string
	read := func(tx journal.Tx) error {
		got = string(tx.Get("b", "k"))
		return nil
	}
	if err := journal.Peek(o, read); !errors.Is(err, fault.Conflict) {
		t.Errorf("while it is open: got %v, want Conflict", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Peek(o, read); err != nil || got != "v" {
		t.Errorf("got %q and %v, want v", got, err)
	}
	other := o
	other.Kind = "other"
	if err := journal.Peek(other, read); !errors.Is(err, fault.Conflict) {
		t.Errorf("of another kind: got %v, want Conflict", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
}

func TestPeek_LeavesWhatItCannotRead(t *testing.T) {
	never := func(journal.Tx) error {
		t.Error("read something")
		return nil
	}
	path := newPath(t)
	if err := journal.Peek(options(path), never); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a journal: got %v, want ErrNotExist", err)
	}
	if _, err := os.Stat(path + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lock was left where no journal is: %v", err)
	}
	garbage := []byte("garbage that is no journal")
	if err := os.WriteFile(path, garbage, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := journal.Peek(options(path), never); err == nil {
		t.Error("garbage was read")
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(garbage) {
		t.Errorf("got %q, %v; want it left as it was", after, err)
	}
}
