package network

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

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
	uids := []id.Sandbox{id.NewSandbox(), id.NewSandbox(), id.NewSandbox()}
	slices.Sort(uids) // some are made in one millisecond
	a, b, c := uids[0], uids[1], uids[2]
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	tests := []struct {
		name         string
		notes, inUse found
		want         found
		lost         id.Sandbox
	}{
		{"nothing", found{}, found{}, found{}, ""},
		{"the ledger was lost", found{}, found{a: one, b: two}, found{a: one, b: two}, ""},
		{"a note without namespace stays", found{a: one}, found{}, found{a: one}, ""},
		{"a note wins over what the same has given itself", found{a: one}, found{a: two}, found{a: one}, ""},
		{"a note wins over who has given itself the address", found{a: one, b: two}, found{a: one, b: one}, found{a: one, b: two}, ""},
		{"what is in use wins over the note of another", found{a: one, c: two}, found{b: one}, found{b: one, c: two}, ""},
		{"of two that use one address the first has it", found{}, found{b: one, a: one, c: two}, found{a: one, c: two}, b},
	}
	for _, tt := range tests {
		got, lost := reconcile(tt.notes, tt.inUse)
		if _, ok := lost[tt.lost]; !maps.Equal(got, tt.want) || ok != (tt.lost != "") || len(lost) > 1 {
			t.Errorf("%s: got %v and lost %v, want %v and %v", tt.name, got, lost, tt.want, tt.lost)
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
		got, lost := reconcile(notes, inUse)
		if len(lost) > 0 {
			t.Fatalf("lost %v, though each uses an address of its own", lost)
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
