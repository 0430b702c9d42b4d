package containerd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/defaults"
)

// The socket of a sandbox's shim goes with the sandbox, whether the shim ended by
// itself or was killed.
func TestEngine_LeavesNoSocketOfAShim(t *testing.T) {
	n := newNode(t)
	for _, kill := range []bool{false, true} {
		a := attempt(t, pushed(t), prog("sleep"), prog("sleep"))
		n.run(t, a)
		path := filepath.Join(defaults.DefaultStateDir, "s", shimSocketName(n.cfg.Address, n.cfg.Namespace, uidOf(a).Lower()))
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Fatalf("socket of the shim: %v, %v", info, err)
		}
		if kill {
			if err := syscall.Kill(n.Shims(t)[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.awaitExit(t, uidOf(a))
		}
		n.clear(t, uidOf(a))
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("shim killed %v: its socket is left: %v", kill, err)
		}
	}
}
