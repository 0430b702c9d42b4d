package refusal

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/kit/fault"
)

const (
	alice = "spiffe://staddle.test/user/alice"
	bob   = "spiffe://staddle.test/user/bob"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestList_EndsTheCallsOfWhoComesOnIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "refused")
	l := Open(Config{Path: path}, quiet())
	var ended []string
	enter := func(identity string) func() {
		t.Helper()
		leave, err := l.Enter(identity, func() { ended = append(ended, identity) })
		if err != nil {
			t.Fatalf("%s: %v", identity, err)
		}
		return leave
	}
	left := enter(alice)
	left()
	enter(alice)
	enter(bob)
	l.Refuse([]string{alice, "spiffe://staddle.test/user/zoe", alice})
	if len(ended) != 1 || ended[0] != alice {
		t.Errorf("ended the calls %q, want the one of alice that was open", ended)
	}
	for _, again := range []*List{l, Open(Config{Path: path}, quiet())} { // a restart forgets nothing
		if _, err := again.Enter(alice, func() {}); !errors.Is(err, fault.Denied) || fault.Reason(err) != "REFUSED" {
			t.Errorf("alice: %v, want Denied", err)
		}
		if _, err := again.Enter(bob, func() {}); err != nil {
			t.Errorf("bob: %v", err)
		}
	}
	l.Refuse(nil)
	enter(alice)
	if _, err := Open(Config{Path: path}, quiet()).Enter(alice, func() {}); err != nil {
		t.Errorf("alice after she was taken off the list: %v", err)
	}
}

// A list that cannot be read is not an empty one.
func TestList_UnreadableRefusesEverybodyUntilItIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "refused")
	if err := os.WriteFile(path, []byte("\x00\x01half"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := Open(Config{Path: path}, quiet())
	if _, err := l.Enter(bob, func() {}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("bob: %v, want Unavailable", err)
	}
	l.Refuse(nil)
	if _, err := l.Enter(bob, func() {}); err != nil {
		t.Errorf("bob after the list was told: %v", err)
	}
	if raw, err := os.ReadFile(path); err != nil || len(raw) != 0 {
		t.Errorf("the file holds %q, %v; want the empty list", raw, err)
	}
}

// What cannot be kept counts all the same, and is kept as soon as that is possible.
func TestList_CountsWhereItCannotBeKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var")
	path := filepath.Join(dir, "refused")
	l := Open(Config{Path: path}, quiet())
	l.Refuse([]string{alice})
	if _, err := l.Enter(alice, func() {}); !errors.Is(err, fault.Denied) {
		t.Errorf("alice: %v, want Denied", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l.Refuse([]string{alice})
	if _, err := Open(Config{Path: path}, quiet()).Enter(alice, func() {}); !errors.Is(err, fault.Denied) {
		t.Errorf("alice after a restart: %v, want Denied", err)
	}
}
