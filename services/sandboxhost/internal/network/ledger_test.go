package network

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

func TestNext_GivesEachAddressOnce(t *testing.T) {
	for _, text := range []string{"10.77.0.0/16", "10.0.0.0/29", "192.168.1.128/25", "10.0.0.0/30"} {
		subnet := netip.MustParsePrefix(text)
		gateway := subnet.Addr().Next()
		broadcast := lastOf(subnet)
		used := map[netip.Addr]bool{}
		var last netip.Addr
		for {
			a, ok := next(subnet, last, func(a netip.Addr) bool { return used[a] })
			if !ok {
				break
			}
			if used[a] || a == gateway || a == subnet.Addr() || a == broadcast || !subnet.Contains(a) {
				t.Fatalf("%s: got %s, which is not free", subnet, a)
			}
			used[a], last = true, a
			if len(used) > 1<<12 {
				break
			}
		}
		want := 1<<(32-subnet.Bits()) - 3
		if len(used) != min(want, 1<<12+1) {
			t.Errorf("%s: got %d addresses, want %d", subnet, len(used), want)
		}
	}
}

func TestNext_GivesFreedAddressLate(t *testing.T) {
	subnet := netip.MustParsePrefix("10.0.0.0/24")
	var last netip.Addr
	first, _ := next(subnet, last, func(netip.Addr) bool { return false })
	last = first
	for range 1<<8 - 4 {
		a, ok := next(subnet, last, func(netip.Addr) bool { return false })
		if !ok || a == first {
			t.Fatalf("got %s again before all others", a)
		}
		last = a
	}
	if a, _ := next(subnet, last, func(netip.Addr) bool { return false }); a != first {
		t.Errorf("got %s, want %s after all others", a, first)
	}
}

func TestReconcile(t *testing.T) {
	a, b, c := id.NewSandbox(), id.NewSandbox(), id.NewSandbox()
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	tests := []struct {
		name         string
		notes, inUse found
		want         found
		kind         fault.Kind
	}{
		{"nothing", found{}, found{}, found{}, 0},
		{"the ledger was lost", found{}, found{a: one, b: two}, found{a: one, b: two}, 0},
		{"a note without namespace stays", found{a: one}, found{}, found{a: one}, 0},
		{"a note wins over what the same has given itself", found{a: one}, found{a: two}, found{a: one}, 0},
		{"a note wins over who has given itself the address", found{a: one, b: two}, found{a: one, b: one}, found{a: one, b: two}, 0},
		{"what is in use wins over the note of another", found{a: one, c: two}, found{b: one}, found{b: one, c: two}, 0},
		{"two namespaces use one address", found{}, found{a: one, b: one}, nil, fault.Conflict},
	}
	for _, tt := range tests {
		got, err := reconcile(tt.notes, tt.inUse)
		if tt.kind != 0 {
			if !errors.Is(err, tt.kind) {
				t.Errorf("%s: got %v", tt.name, err)
			}
			continue
		}
		if err != nil || !equal(got, tt.want) {
			t.Errorf("%s: got %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
}

func TestReconcile_NeverDoubles(t *testing.T) {
	uids := make([]id.Sandbox, 12)
	for i := range uids {
		uids[i] = id.NewSandbox()
	}
	for range 2000 {
		notes, inUse := found{}, found{}
		free := rand.Perm(len(uids))
		for i, uid := range uids {
			if rand.IntN(2) == 0 {
				notes[uid] = netip.AddrFrom4([4]byte{10, 0, 0, byte(rand.IntN(8))})
			}
			if rand.IntN(2) == 0 {
				inUse[uid] = netip.AddrFrom4([4]byte{10, 0, 0, byte(free[i])})
			}
		}
		got, err := reconcile(notes, inUse)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]id.Sandbox{}
		for uid, addr := range got {
			if other, ok := seen[addr]; ok {
				t.Fatalf("%s and %s both have %s", uid, other, addr)
			}
			seen[addr] = uid
		}
		for uid, addr := range inUse {
			if note, noted := notes[uid]; (!noted || note == addr) && got[uid] != addr {
				t.Fatalf("%s uses %s, had the note %v and is noted with %v", uid, addr, note, got[uid])
			}
		}
	}
}

func equal(a, b found) bool {
	if len(a) != len(b) {
		return false
	}
	for uid, addr := range a {
		if b[uid] != addr {
			return false
		}
	}
	return true
}
