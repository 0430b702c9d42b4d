package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"staddle.internal/kit/logging"
)

// takenDownFile, in the folder of data, says in which boot the node was taken down.
const takenDownFile = "taken-down"

// MarkTakenDown notes in the folder of data of a host that does not run that its
// workloads are ended with the node, in the boot with an id. The next start then
// treats that as it treats a reboot: no sandbox has crashed. Safe to repeat.
func MarkTakenDown(folder, bootID string) error {
	temp := filepath.Join(folder, takenDownFile+".new")
	if err := os.WriteFile(temp, []byte(bootID+"\n"), 0o600); err != nil {
		return fmt.Errorf("note that the node is taken down: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(folder, takenDownFile)); err != nil {
		return fmt.Errorf("note that the node is taken down: %w", err)
	}
	return nil
}

// takenDown says whether the node was taken down in this boot since the host ran last. A
// note that cannot be read is none: then what ended counts as a crash.
func (h *Host) takenDown() bool {
	if h.cfg.Folder == "" {
		return false
	}
	raw, err := os.ReadFile(filepath.Join(h.cfg.Folder, takenDownFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log().Warn("note of a take-down unreadable", logging.Err(err))
	}
	return err == nil && strings.TrimSpace(string(raw)) == h.cfg.BootID
}

// unmarkTakenDown forgets it, once what follows from it is durable.
func (h *Host) unmarkTakenDown() {
	if h.cfg.Folder == "" {
		return
	}
	if err := os.Remove(filepath.Join(h.cfg.Folder, takenDownFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log().Warn("note of a take-down not removed", logging.Err(err))
	}
}
