package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/defaults"

	"staddle.internal/kit/id"
)

// removeShimSocket removes the socket of a sandbox's shim. The shim leaves it: when
// it ends it looks for one by the name of its first container, and ours is named
// after the sandbox, since all containers share it. No container of the sandbox may
// be left; a shim that is about to end is not reached over it any more.
func (e *Engine) removeShimSocket(uid id.Sandbox) error {
	name := shimSocketName(e.cfg.Address, e.cfg.Namespace, uid.Lower())
	// Ours where the supervisor runs containerd and the path is not too long.
	for _, dir := range []string{filepath.Join(e.cfg.Paths.Run(), "shims"), filepath.Join(defaults.DefaultStateDir, "s")} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("release sandbox %s: remove socket of its shim: %w", uid, err)
		}
	}
	return nil
}

// shimSocketName is the name that containerd's shim gives its socket.
func shimSocketName(address, namespace, group string) string {
	sum := sha256.Sum256([]byte(filepath.Join(address, namespace, group)))
	return hex.EncodeToString(sum[:])
}
