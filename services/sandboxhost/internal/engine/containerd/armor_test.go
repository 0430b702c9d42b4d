package containerd

import (
	"strings"
	"testing"
)

func TestArmor_SaysWhatIsLacking(t *testing.T) {
	for _, tt := range []struct {
		name string
		has  armor
		want string // a part of it; empty: nothing is lacking
	}{
		{"all that is needed", armor{kernel: true, parser: true}, ""},
		{"a kernel without", armor{parser: true}, "kernel"},
		{"nothing to load profiles with", armor{kernel: true}, "install the package apparmor"},
		{"nothing at all", armor{}, "kernel"},
		{"a container", armor{kernel: true, parser: true, container: true}, "in a container"},
	} {
		got := tt.has.lacking()
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q in it", tt.name, got, tt.want)
		}
	}
}
