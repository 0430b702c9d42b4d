package journal_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
)

func options(path string) journal.Options {
	return journal.Options{Path: path, Kind: "test", Version: 3}
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "notes.db") }

// open opens a journal that is closed with the test at the latest.
func open(t *testing.T, o journal.Options) (*journal.Journal, journal.Recovery) {
	t.Helper()
	j, rec, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j, rec
}

func put(t *testing.T, j *journal.Journal, bucket, key, value string) {
	t.Helper()
	if err := j.Update(func(tx journal.Tx) error { return tx.Put(bucket, key, []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

// list returns the bucket as "key=value" lines.
func list(t *testing.T, j *journal.Journal, bucket string) []string {
	t.Helper()
	var lines []string
	err := j.View(func(tx journal.Tx) error {
		return tx.ForEach(bucket, func(k string, v []byte) error {
			lines = append(lines, k+"="+string(v))
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestJournal_KeepsNotesOverAReopen(t *testing.T) {
	path := newPath(t)
	j, rec := open(t, options(path))
	if !rec.Fresh || rec.SetAside != "" || rec.Version != 0 {
		t.Errorf("first open: %+v", rec)
	}
	put(t, j, "wish", "b", "2")
	put(t, j, "wish", "a", "1")
	put(t, j, "wish", "a", "1.1")
	put(t, j, "exit", "a", "")
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Fatal(err)
	}
	j, rec = open(t, options(path))
	if rec.Fresh || rec.SetAside != "" || rec.Version != 3 {
		t.Errorf("second open: %+v", rec)
	}
	if got, want := list(t, j, "wish"), []string{"a=1.1", "b=2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := list(t, j, "exit"), []string{"a="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTx_GetTellsMissingFromEmpty(t *testing.T) {
	j, _ := open(t, options(newPath(t)))
	put(t, j, "b", "empty", "")
	err := j.View(func(tx journal.Tx) error {
		if v := tx.Get("b", "empty"); v == nil || len(v) != 0 {
			t.Errorf("empty value reads as %v", v)
		}
		if v := tx.Get("b", "none"); v != nil {
			t.Errorf("missing key reads as %v", v)
		}
		if v := tx.Get("none", "none"); v != nil {
			t.Errorf("missing bucket reads as %v", v)
		}
		return tx.ForEach("none", func(string, []byte) error { return errors.New("called") })
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTx_ForEachMayChangeTheBucket(t *testing.T) {
	j, _ := open(t, options(newPath(t)))
	for i := range 300 {
		put(t, j, "b", fmt.Sprintf("%03d", i), "x")
	}
	err := j.Update(func(tx journal.Tx) error {
		return tx.ForEach("b", func(k string, _ []byte) error {
			return errors.Join(tx.Delete("b", k), tx.Put("b", "z"+k, []byte("y")))
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, j, "b"); len(got) != 300 || got[0] != "z000=y" || got[299] != "z299=y" {
		t.Errorf("got %d notes, %q to %q", len(got), got[0], got[len(got)-1])
	}
	if err := j.Update(func(tx journal.Tx) error { return errors.Join(tx.Delete("b", "none"), tx.Delete("none", "none")) }); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
}

func TestTx_RefusesBadNames(t *testing.T) {
	j, _ := open(t, options(newPath(t)))
	for _, n := range [][2]string{{"", "k"}, {"b", ""}, {"\x00journal", "version"}} {
		for _, change := range []func(journal.Tx) error{
			func(tx journal.Tx) error { return tx.Put(n[0], n[1], nil) },
			func(tx journal.Tx) error { return tx.Delete(n[0], n[1]) },
		} {
			if err := j.Update(change); !errors.Is(err, fault.Invalid) {
				t.Errorf("%q: got %v, want Invalid", n, err)
			}
		}
	}
}

func TestProto_ComesBack(t *testing.T) {
	j, _ := open(t, options(newPath(t)))
	want := wrapperspb.String("wish")
	if err := j.Update(func(tx journal.Tx) error { return journal.PutProto(tx, "b", "k", want) }); err != nil {
		t.Fatal(err)
	}
	put(t, j, "bad", "k", "\xff")
	err := j.View(func(tx journal.Tx) error {
		got, found, err := journal.GetProto[*wrapperspb.StringValue](tx, "b", "k")
		if err != nil || !found || !proto.Equal(got, want) {
			t.Errorf("GetProto = %v, %t, %v", got, found, err)
		}
		if _, found, err := journal.GetProto[*wrapperspb.StringValue](tx, "b", "none"); found || err != nil {
			t.Errorf("GetProto of a missing key = %t, %v", found, err)
		}
		if _, found, err := journal.GetProto[*wrapperspb.StringValue](tx, "bad", "k"); found || err == nil {
			t.Errorf("GetProto of nonsense = %t, %v", found, err)
		}
		n := 0
		err = journal.ForEachProto(tx, "b", func(k string, m *wrapperspb.StringValue) error {
			if n++; k != "k" || !proto.Equal(m, want) {
				t.Errorf("ForEachProto gave %s, %v", k, m)
			}
			return nil
		})
		if n != 1 {
			t.Errorf("ForEachProto gave %d notes", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOpen_KindAndVersion(t *testing.T) {
	tests := []struct {
		name    string
		kind    string
		version int
		want    string
	}{
		{"the same", "test", 3, ""},
		{"one later reads it", "test", 4, ""},
		{"one earlier does not", "test", 2, "newer than 2"},
		{"two later does not", "test", 5, "too old for 5"},
		{"another kind", "storage", 3, `journal of "test", not of "storage"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options(newPath(t))
			j, _ := open(t, o)
			put(t, j, "b", "k", "v")
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j, rec, err := journal.Open(journal.Options{Path: o.Path, Kind: tt.kind, Version: tt.version})
			if tt.want != "" {
				if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want Conflict with %q", err, tt.want)
				}
				j, rec = open(t, o) // and the file is as it was
			}
			if j == nil {
				t.Fatal(err)
			}
			if rec.Fresh || rec.Version != 3 {
				t.Errorf("found %+v, want version 3", rec)
			}
			if got := list(t, j, "b"); !slices.Equal(got, []string{"k=v"}) {
				t.Errorf("notes are %q", got)
			}
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpen_TheFileIsOursAfterwards(t *testing.T) {
	o := options(newPath(t))
	for _, version := range []int{3, 4, 5} {
		o.Version = version
		j, _ := open(t, o)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpen_RefusesHalfOptions(t *testing.T) {
	for _, o := range []journal.Options{{}, {Path: "x", Kind: "k"}, {Path: "x", Version: 1}, {Kind: "k", Version: 1}} {
		if _, _, err := journal.Open(o); !errors.Is(err, fault.Invalid) {
			t.Errorf("%+v: got %v, want Invalid", o, err)
		}
	}
}

func TestJournal_IsUnavailableAfterClose(t *testing.T) {
	j, _ := open(t, options(newPath(t)))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	nothing := func(journal.Tx) error { t.Error("called"); return nil }
	if err := j.Update(nothing); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Update = %v, want Unavailable", err)
	}
	if err := j.View(nothing); !errors.Is(err, fault.Unavailable) {
		t.Errorf("View = %v, want Unavailable", err)
	}
}
