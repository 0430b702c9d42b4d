package idrange

import (
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
)

// base is where the pools of the tests begin.
const base = 100 * Size

// pool is one of so many ranges, open, with its ledger in a folder of the test.
func pool(t *testing.T, ledger string, ranges int, inUse map[id.Sandbox]uint32) *Pool {
	t.Helper()
	p := New(Config{First: base, Ranges: ranges, Ledger: ledger}, slog.New(slog.DiscardHandler))
	if err := p.Open(inUse); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, p) })
	return p
}

func closed(t *testing.T, p *Pool) {
	t.Helper()
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

func claim(t *testing.T, p *Pool, uid id.Sandbox) uint32 {
	t.Helper()
	first, err := p.Claim(uid)
	if err != nil {
		t.Fatal(err)
	}
	return first
}

// Whoever claims at once, no two have the same ids, each keeps its own, and one too
// many is told.
func TestClaim_NeverTheSameForTwo(t *testing.T) {
	const ranges = 50
	p := pool(t, filepath.Join(t.TempDir(), "ids.db"), ranges, nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	owners := map[uint32]id.Sandbox{}
	for range ranges {
		uid := id.NewSandbox()
		wg.Go(func() {
			first, err := p.Claim(uid)
			again, errAgain := p.Claim(uid)
			mu.Lock()
			defer mu.Unlock()
			if other, taken := owners[first]; err != nil || errAgain != nil || taken || again != first || !p.assignable(first) {
				t.Errorf("got %d and %d, %v, %v; %q has it", first, again, err, errAgain, other)
			}
			owners[first] = uid
		})
	}
	wg.Wait()
	if _, err := p.Claim(id.NewSandbox()); !errors.Is(err, fault.Exhausted) || fault.Reason(err) != "NO_FREE_IDS" {
		t.Errorf("got %v, want Exhausted", err)
	}
	for first, uid := range owners {
		if err := errors.Join(p.Free(uid), p.Free(uid)); err != nil {
			t.Fatal(err)
		}
		if got := claim(t, p, id.NewSandbox()); got != first {
			t.Errorf("got %d, want the one that is free, %d", got, first)
		}
		break
	}
}

func TestClaim_GivesFreedRangeLate(t *testing.T) {
	p := pool(t, filepath.Join(t.TempDir(), "ids.db"), 3, nil)
	a := id.NewSandbox()
	if got := claim(t, p, a); got != base {
		t.Errorf("got %d first", got)
	}
	if err := p.Free(a); err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint32{base + Size, base + 2*Size, base} {
		if got := claim(t, p, id.NewSandbox()); got != want {
			t.Errorf("claim %d: got %d, want %d", i, got, want)
		}
	}
}

// What was claimed is so after a restart, whether the ledger is there or was lost; what
// was freed is not.
func TestOpen_KeepsWhatIsInUse(t *testing.T) {
	dir := t.TempDir()
	before := pool(t, filepath.Join(dir, "ids.db"), 4, nil)
	kept, freed, lives := id.NewSandbox(), id.NewSandbox(), id.NewSandbox()
	first := claim(t, before, kept)
	claim(t, before, freed)
	if err := before.Free(freed); err != nil {
		t.Fatal(err)
	}
	closed(t, before)

	inUse := map[id.Sandbox]uint32{lives: base + 3*Size}
	after := pool(t, filepath.Join(dir, "ids.db"), 4, inUse)
	for uid, want := range map[id.Sandbox]uint32{kept: first, lives: base + 3*Size} {
		if got, ok := after.First(uid); !ok || got != want {
			t.Errorf("got %d, %t, want %d", got, ok, want)
		}
	}
	if _, ok := after.First(freed); ok || len(after.Sandboxes()) != 2 {
		t.Errorf("got %v, want two without the one that was freed", after.Sandboxes())
	}
	lost := pool(t, filepath.Join(dir, "lost.db"), 4, inUse)
	for range 3 {
		if got := claim(t, lost, id.NewSandbox()); got == base+3*Size {
			t.Errorf("the ids of a sandbox that lives were given to another")
		}
	}
}

// A pool that was moved leaves what lives where it is, and gives what does not live
// ids of its own.
func TestOpen_AfterThePoolWasMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ids.db")
	p := pool(t, path, 2, nil)
	lives, rests := id.NewSandbox(), id.NewSandbox()
	was := claim(t, p, lives)
	claim(t, p, rests)
	closed(t, p)
	moved := New(Config{First: base + 50*Size, Ranges: 2, Ledger: path}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { closed(t, moved) })
	if err := moved.Open(map[id.Sandbox]uint32{lives: was}); err != nil {
		t.Fatal(err)
	}
	if got := claim(t, moved, lives); got != was {
		t.Errorf("one that lives has %d, had %d", got, was)
	}
	if got := claim(t, moved, rests); !moved.assignable(got) {
		t.Errorf("got %d, which is not in the pool", got)
	}
}

// Two that share a range hold up nobody: one keeps it, the other has none, and is given
// another; nobody else ever gets it.
func TestOpen_TwoWithOneRange(t *testing.T) {
	dir := t.TempDir()
	first, second := id.NewSandbox(), id.NewSandbox()
	if second < first { // made in one millisecond
		first, second = second, first
	}
	for range 20 { // maps have no order
		p := pool(t, filepath.Join(dir, string(id.NewSandbox())), 3, map[id.Sandbox]uint32{first: base, second: base})
		if got, ok := p.First(first); !ok || got != base {
			t.Fatalf("the first has %d, %t, want %d", got, ok, base)
		}
		if got, ok := p.First(second); ok {
			t.Fatalf("the second has %d, want none", got)
		}
		if got := claim(t, p, second); got == base {
			t.Fatalf("the second was given the ids of the first again")
		}
	}
	path := filepath.Join(dir, "ids.db")
	noted := pool(t, path, 3, nil)
	was := claim(t, noted, second)
	closed(t, noted)
	after := pool(t, path, 3, map[id.Sandbox]uint32{first: was, second: was})
	if got, ok := after.First(second); !ok || got != was {
		t.Errorf("the one with the note has %d, %t, want %d", got, ok, was)
	}
	if got, ok := after.First(first); ok {
		t.Errorf("the one without has %d, want none", got)
	}
}

// A note that makes no sense is skipped, and the others count.
func TestOpen_SkipsNotesWithoutSense(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ids.db")
	p := pool(t, path, 3, nil)
	uid := id.NewSandbox()
	first := claim(t, p, uid)
	err := p.ledger.Update(func(tx journal.Tx) error {
		return errors.Join(tx.Put(bucket, "nobody", note(first)), tx.Put(bucket, string(id.NewSandbox()), []byte("many")))
	})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, p)
	after := pool(t, path, 3, nil)
	if got, ok := after.First(uid); !ok || got != first || len(after.Sandboxes()) != 1 {
		t.Errorf("got %d, %t and %v, want %d for one", got, ok, after.Sandboxes(), first)
	}
}
