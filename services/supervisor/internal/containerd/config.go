// Package containerd owns the configuration with which the supervisor starts a
// managed containerd: where its things lie, who may speak to it, and what of it is
// not used.
//
// It must never start containerd or speak to it: that is the business of the
// children and of sandboxhost. In the trail it comes before the first start.
package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Config says what differs from node to node.
type Config struct {
	// Root holds what lasts: images, snapshots and metadata.
	Root string
	// State holds what ends with the boot: tasks and their mounts.
	State string
	// Address is its only socket for others.
	Address string
	// Shims holds the sockets of its shims. Empty, or too long for a socket of
	// theirs, means its own default, which all nodes of a machine share.
	Shims string
	// UID and GID own that socket: the user of sandboxhost.
	UID, GID int
}

// maxShims is how long containerd lets the folder of shims' sockets be, since their
// own names are long.
const maxShims = 42

// disabled are the plugins of other uses: Kubernetes, plugins for nodes, a
// restarter that would work against ours, and snapshotters that need devices.
var disabled = []string{
	"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
	"io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.monitor.container.v1.restart",
	"io.containerd.image-verifier.v1.bindir", "io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs",
	"io.containerd.differ.v1.erofs", "io.containerd.mount-handler.v1.erofs",
	"io.containerd.podsandbox.controller.v1.podsandbox",
}

// TOML is the whole file. Nothing is imported, nothing listens on TCP, and the
// OOM score stays as it is: to lower it needs a right that a host may not give.
func (c Config) TOML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by the supervisor at each start; changes are lost.\nversion = 3\nroot = %s\nstate = %s\n",
		strconv.Quote(c.Root), strconv.Quote(c.State))
	b.WriteString("oom_score = 0\nimports = []\ndisabled_plugins = [\n")
	for _, p := range disabled {
		fmt.Fprintf(&b, "  %q,\n", p)
	}
	fmt.Fprintf(&b, "]\n\n[grpc]\n  address = %s\n  uid = %d\n  gid = %d\n", strconv.Quote(c.Address), c.UID, c.GID)
	fmt.Fprintf(&b, "\n[ttrpc]\n  address = %s\n  uid = 0\n  gid = 0\n", strconv.Quote(c.Address+".ttrpc"))
	b.WriteString("\n[debug]\n  address = \"\"\n  level = \"warn\"\n\n[metrics]\n  address = \"\"\n")
	if c.Shims != "" && len(c.Shims) <= maxShims {
		fmt.Fprintf(&b, "\n[plugins.\"io.containerd.shim.v1.manager\"]\n  socket_dir = %s\n", strconv.Quote(c.Shims))
	}
	return b.String()
}

// Write makes the folders and puts the file below Root, whole or not at all, and
// returns its path. A file that says the same already is left alone, so that a
// node starts on a full disk.
func (c Config) Write() (string, error) {
	dirs := []string{c.Root, c.State, filepath.Dir(c.Address)}
	if c.Shims != "" {
		dirs = append(dirs, c.Shims)
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return "", fmt.Errorf("write configuration of containerd: %w", err)
		}
	}
	if err := c.nameNamespaces(); err != nil {
		return "", fmt.Errorf("write configuration of containerd: %w", err)
	}
	path := filepath.Join(c.Root, "config.toml")
	text := []byte(c.TOML())
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return path, nil
	}
	passing := path + ".new"
	if err := os.WriteFile(passing, text, 0o600); err != nil {
		return "", fmt.Errorf("write configuration of containerd: %w", err)
	}
	if err := os.Rename(passing, path); err != nil {
		return "", fmt.Errorf("write configuration of containerd: %w", err)
	}
	return path, nil
}

// nameNamespaces makes a folder in the state for each namespace that has had tasks.
// At its start containerd removes what lasts of tasks that are gone, but only in
// namespaces that it finds in its state, and there are none after a reboot.
func (c Config) nameNamespaces() error {
	const tasks = "io.containerd.runtime.v2.task"
	namespaces, err := os.ReadDir(filepath.Join(c.Root, tasks))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its first start
	}
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if err := os.MkdirAll(filepath.Join(c.State, tasks, ns.Name()), 0o711); err != nil {
			return err
		}
	}
	return nil
}
