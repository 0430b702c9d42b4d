package inroot

import (
	"errors"
	"os"
	"testing"

	"staddle.internal/kit/fault"
)

func TestIdentity_OfThisProcess(t *testing.T) {
	who, err := IdentityOf(os.Getpid())
	if err != nil || who.UID != os.Getuid() || who.GID != os.Getgid() {
		t.Errorf("got %+v, %v", who, err)
	}
	if u, g, err := who.Outside(7, 8); err != nil || u != 7 || g != 8 {
		t.Errorf("got %d, %d, %v", u, g, err)
	}
}

// Numbers are carried through the maps of a user namespace, both ways.
func TestIdentity_CarriesNumbers(t *testing.T) {
	who := Identity{uids: []extent{{0, 100_000, 1000}, {5000, 300_000, 10}}, gids: []extent{{0, 200_000, 1000}}}
	if u, g, err := who.Outside(5009, 999); err != nil || u != 300_009 || g != 200_999 {
		t.Errorf("outside: got %d, %d, %v", u, g, err)
	}
	if u, g := who.Inside(300_009, 200_999); u != 5009 || g != 999 {
		t.Errorf("inside: got %d, %d", u, g)
	}
	for _, n := range [][2]int{{1000, 0}, {5010, 0}, {0, 1000}, {-1, 0}, {0, -1}} {
		if u, g, err := who.Outside(n[0], n[1]); !errors.Is(err, fault.Invalid) {
			t.Errorf("outside %v: got %d, %d, %v", n, u, g, err)
		}
	}
	if u, g := who.Inside(0, 201_000); u != nobody || g != nobody {
		t.Errorf("inside: got %d, %d, want nobody", u, g)
	}
}
