package fdstore_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
)

func TestPush_IsKeptWhenItReturns(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, self)
	s := client(t, m.socket)
	r, w := pipe(t)
	if err := s.Push("log-a", r); err != nil {
		t.Fatal(err)
	}
	if got := names(m, "self"); !slices.Equal(got, []string{"log-a"}) {
		t.Fatalf("kept %q", got)
	}
	if _, err := w.WriteString("hi"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	copies, err := m.Open("self")
	if err != nil || len(copies) != 1 || copies[0].Name() != "log-a" {
		t.Fatalf("Open = %v, %v", copies, err)
	}
	got, err := io.ReadAll(copies[0])
	if err := errors.Join(err, copies[0].Close()); err != nil || string(got) != "hi" {
		t.Errorf("kept pipe has %q, %v", got, err)
	}
	if err := s.Remove("log-a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Push("log-b", w2(t)); err != nil { // also waits for the removal
		t.Fatal(err)
	}
	if got := names(m, "self"); !slices.Equal(got, []string{"log-b"}) {
		t.Errorf("kept %q after the removal", got)
	}
}

func TestPush_SameNameReplaces(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, self)
	s := client(t, m.socket)
	r1, w1 := pipe(t)
	r2, _ := pipe(t)
	if err := errors.Join(s.Push("a", r1), r1.Close(), s.Push("a", r2)); err != nil {
		t.Fatal(err)
	}
	if got := names(m, "self"); len(got) != 1 {
		t.Errorf("kept %q", got)
	}
	if _, err := w1.WriteString("x"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the replaced pipe is still open: %v", err)
	}
}

func TestStore_WithoutAManager(t *testing.T) {
	s := client(t, "")
	if s.Available() {
		t.Error("a manager is available")
	}
	if err := s.Push("a", os.Stdin); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Push = %v, want Unavailable", err)
	}
	if err := errors.Join(s.Notify("READY=1"), s.Remove("a")); err != nil {
		t.Errorf("Notify, Remove = %v", err)
	}
	gone := client(t, filepath.Join(t.TempDir(), "none"))
	if err := gone.Push("a", os.Stdin); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Push to nobody = %v, want Unavailable", err)
	}
	if err := s.Push("a:b", os.Stdin); !errors.Is(err, fault.Invalid) {
		t.Errorf("Push of a bad name = %v, want Invalid", err)
	}
}
