package containerd

import (
	"strconv"
	"testing"
)

// What images say of their users must not fill the memory of the node.
func TestUsers_RememberWithinBounds(t *testing.T) {
	u := newUsers(nil)
	u.remember("long", accounts{passwd: make([]byte, maxRemembered), group: []byte("x")})
	for i := range 3 * maxKnown {
		u.remember(strconv.Itoa(i), accounts{passwd: []byte("root:x:0:0::/:/bin/sh")})
	}
	if _, ok := u.known["long"]; ok || len(u.known) != maxKnown {
		t.Errorf("remembers %d images, want %d, and a long one: %t", len(u.known), maxKnown, ok)
	}
	if _, ok := u.known[strconv.Itoa(3*maxKnown-1)]; !ok {
		t.Error("the newest is not remembered")
	}
}
