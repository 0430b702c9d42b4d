package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
)

// sample returns the bytes of a closed journal with notes of several pages, and
// the notes before and after its last transaction.
func sample(t *testing.T) (file []byte, before, after []string) {
	t.Helper()
	path := newPath(t)
	j, _ := open(t, options(path))
	err := j.Update(func(tx journal.Tx) error {
		for i := range 200 {
			if err := tx.Put("b", fmt.Sprintf("%04d", i), bytes.Repeat([]byte{byte('a' + i%26)}, 100)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before = list(t, j, "b")
	put(t, j, "b", "last", "one")
	after = list(t, j, "b")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	file, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return file, before, after
}

func TestOpen_SetsAnUnreadableFileAside(t *testing.T) {
	whole, _, _ := sample(t)
	garbled := slices.Clone(whole)
	for i := range garbled {
		garbled[i] = byte(i * 7)
	}
	flipped := slices.Clone(whole)
	for at := range flipped { // in old copies of the page as well
		if bytes.HasPrefix(flipped[at:], bytes.Repeat([]byte("c"), 100)) {
			flipped[at+50] ^= 1
		}
	}
	tests := []struct {
		name string
		file []byte
	}{
		{"empty", nil},
		{"a few bytes", []byte("hello")},
		{"zeros", make([]byte, 64<<10)},
		{"text", bytes.Repeat([]byte("not a journal\n"), 9000)},
		{"garbled", garbled},
		{"one page", whole[:4096]},
		{"two pages", whole[:8192]},
		{"cut in the middle", whole[:4096*5]},
		{"one bit of one value flipped", flipped},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := newPath(t)
			if err := os.WriteFile(path, tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			o := options(path)
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			j, rec := open(t, o)
			if !rec.Fresh || rec.Damage == "" || !strings.HasPrefix(rec.SetAside, path+".bad-") {
				t.Fatalf("recovery is %+v", rec)
			}
			if !strings.Contains(log.String(), rec.SetAside) {
				t.Errorf("log does not name it: %s", &log)
			}
			if kept, err := os.ReadFile(rec.SetAside); err != nil || !bytes.Equal(kept, tt.file) {
				t.Errorf("file set aside is not what was there: %d bytes, %v", len(kept), err)
			}
			put(t, j, "b", "k", "v")
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if _, rec := open(t, o); rec.Fresh {
				t.Error("the new journal did not last")
			}
		})
	}
}

// TestOpen_NeverInventsAState garbles random places and cuts at random lengths:
// what is read must be a state that was once written, or the file is set aside.
func TestOpen_NeverInventsAState(t *testing.T) {
	whole, before, after := sample(t)
	dir := t.TempDir()
	aside := 0
	for i := range 120 {
		file := slices.Clone(whole)
		if i%3 == 0 {
			file = file[:rand.IntN(len(file))]
		} else {
			at, n := rand.IntN(len(file)), 1+rand.IntN(600)
			for k := at; k < min(at+n, len(file)); k++ {
				file[k] = byte(rand.Uint32())
			}
		}
		path := filepath.Join(dir, fmt.Sprintf("%d.db", i))
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		j, rec := open(t, options(path))
		switch got := list(t, j, "b"); {
		case rec.SetAside != "" && len(got) == 0:
			aside++
		case rec.SetAside == "" && (slices.Equal(got, before) || slices.Equal(got, after)):
		default:
			t.Errorf("try %d: recovery %+v with %d notes", i, rec, len(got))
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	if aside == 0 {
		t.Error("no damage was found in 120 tries")
	}
}

func TestOpen_KeepsFilesThatAreNotItsOwn(t *testing.T) {
	path := newPath(t)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := journal.Open(options(path)); !errors.Is(err, fault.Invalid) {
		t.Errorf("a folder: got %v, want Invalid", err)
	}
	if _, _, err := journal.Open(options(filepath.Join(t.TempDir(), "none", "notes.db"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing folder: got %v, want that it does not exist", err)
	}
}

func TestOpen_TakesUpAHalfMadeNewFile(t *testing.T) {
	path := newPath(t)
	if err := os.WriteFile(path+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, rec := open(t, options(path)); !rec.Fresh || rec.SetAside != "" {
		t.Errorf("recovery is %+v, want fresh", rec)
	}
}

func TestJournal_FileCutWhileOpenIsAnErrorNotACrash(t *testing.T) {
	path := newPath(t)
	j, _, err := journal.Open(options(path))
	if err != nil {
		t.Fatal(err)
	}
	put(t, j, "b", "k", "v")
	owner, stop := j.While(t.Context())
	defer stop()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if owner.Err() != nil {
		t.Error("the owner was ended before anybody read")
	}
	read := func(tx journal.Tx) error { tx.Get("b", "k"); return nil }
	for range 2 { // the second time nothing of the first may be held
		if err := j.View(read); err == nil {
			t.Error("View of a file that is gone = nil")
		}
		if err := j.Update(read); err == nil {
			t.Error("Update of a file that is gone = nil")
		}
	}
	select {
	case <-owner.Done():
		if cause := context.Cause(owner); !strings.Contains(cause.Error(), path) {
			t.Errorf("the owner ends with %v, which does not name the file", cause)
		}
	case <-time.After(20 * time.Second):
		t.Error("the owner goes on without its notes")
	}
	if err := j.Close(); err == nil {
		t.Error("Close of a file that is gone = nil")
	}
	if _, rec := open(t, options(path)); rec.SetAside == "" {
		t.Errorf("recovery is %+v, want the file set aside", rec)
	}
}
