package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/inlet"
	"staddle.internal/services/sandboxhost/internal/inventory"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// Folders of single containers in the folder of their sandbox.
const (
	filesFolder = "files"
	bindsFolder = "binds"
	stdinFolder = "stdin"
	pipesFolder = "io"
)

func (e *Engine) listShims(_ context.Context, s *stock) error {
	pids, err := e.shims()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if uid, ok := e.shimOf(pid); ok {
			s.add(inventory.Object{Kind: inventory.Shim, Name: uid.Lower(), UID: uid, Since: modified(filepath.Join("/proc", strconv.Itoa(pid)))})
		}
	}
	return nil
}

// listShimSockets lists those that nobody serves. Their names are hashes, which do
// not tell of whom they were.
func (e *Engine) listShimSockets(_ context.Context, s *stock) error {
	names, err := entries(e.shimSockets())
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return nil
	}
	served, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return fmt.Errorf("list sockets: %w", err)
	}
	for _, name := range names {
		path := filepath.Join(e.shimSockets(), name)
		// A shim notes every call that says nothing, so only those are called of which
		// the kernel does not say that they are served.
		if !strings.Contains(string(served), path+"\n") && abandoned(path) {
			s.add(inventory.Object{Kind: inventory.ShimSocket, Name: path, Since: modified(path)})
		}
	}
	return nil
}

// shimSockets is where a containerd that the supervisor runs has them.
func (e *Engine) shimSockets() string { return filepath.Join(e.cfg.Paths.Run(), "shims") }

// abandoned says that a path is a socket that nobody serves any more.
func abandoned(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func (e *Engine) listTaskFolders(_ context.Context, s *stock) error {
	for _, dir := range e.taskFolders() {
		names, err := entries(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			s.of(inventory.TaskFolder, path, strings.TrimPrefix(name, "."), modified(path))
		}
	}
	return nil
}

// listMounts lists what is mounted in the folders of sandboxes and of tasks.
func (e *Engine) listMounts(_ context.Context, s *stock) error {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, e.pins.Root()+"/") && !strings.HasPrefix(i.Mountpoint, e.bundles()+"/"), false
	})
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, i := range infos {
		if rel, ok := strings.CutPrefix(i.Mountpoint, e.bundles()+"/"); ok {
			containerID, _, _ := strings.Cut(rel, "/")
			s.of(inventory.Mount, i.Mountpoint, containerID, time.Time{})
			continue
		}
		e.addMount(s, i)
	}
	return nil
}

// addMount notes a mount in the folder of a sandbox.
func (e *Engine) addMount(s *stock, i *mountinfo.Info) {
	rel := strings.Split(strings.TrimPrefix(i.Mountpoint, e.pins.Root()+"/"), "/")
	uid, ok := sandboxOf(rel[0])
	if !ok || rel[0] != uid.Lower() || len(rel) < 2 {
		return
	}
	const within, place = 3, 4 // binds/<container>/<number>, and what is mounted below it
	switch {
	case i.FSType == "nsfs" && len(rel) == 2:
		s.add(inventory.Object{Kind: inventory.Namespace, Name: i.Mountpoint, UID: uid})
	case rel[1] != bindsFolder:
		s.add(inventory.Object{Kind: inventory.Mount, Name: i.Mountpoint, UID: uid})
	case len(rel) > within && len(rel) <= place:
		s.of(inventory.Mount, i.Mountpoint, rel[2], time.Time{})
	}
}

// listFolders lists the folders of sandboxes, with what lies in them for single
// containers, and what was written.
func (e *Engine) listFolders(_ context.Context, s *stock) error {
	uids, err := e.pins.Sandboxes()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		dir := e.pins.Dir(uid)
		s.add(inventory.Object{Kind: inventory.Folder, Name: dir, UID: uid, Since: modified(dir)})
		for _, sub := range []string{pipesFolder, stdinFolder, filesFolder, bindsFolder, besideFolder} {
			names, err := entries(filepath.Join(dir, sub))
			if err != nil {
				return err
			}
			for _, name := range names {
				addEntry(s, uid, dir, sub, name)
			}
		}
	}
	written, err := e.logs.Sandboxes()
	if err != nil {
		return err
	}
	for _, uid := range written {
		s.addFolder(inventory.Output, e.logs.Dir(uid), uid)
	}
	scratch, err := namespace.List(e.scratchRoot())
	for _, uid := range scratch {
		s.addFolder(inventory.Scratch, e.scratch(uid), uid)
	}
	return err
}

func (s *stock) addFolder(kind inventory.Kind, path string, uid id.Sandbox) {
	s.add(inventory.Object{Kind: kind, Name: path, UID: uid, Since: modified(path)})
}

// addEntry notes what lies in the folder of a sandbox for one container.
func addEntry(s *stock, uid id.Sandbox, dir, sub, name string) {
	path := filepath.Join(dir, sub, name)
	kind, containerID := inventory.Folder, name
	switch sub {
	case stdinFolder:
		kind = inventory.Pipe
		containerID = strings.TrimSuffix(name, inlet.Suffix)
	case pipesFolder:
		kind = inventory.Pipe
		stem, _, _ := strings.Cut(name, ".")
		containerID = uid.Lower() + "-" + stem
	}
	s.of(kind, path, containerID, modified(path))
}

func (e *Engine) listCgroups(_ context.Context, s *stock) error {
	uids, err := e.groupsOfSandboxes()
	for _, uid := range uids {
		s.add(inventory.Object{Kind: inventory.Cgroup, Name: e.group(uid.Lower()), UID: uid})
	}
	return err
}

// groupsOfSandboxes lists the sandboxes that have a control group.
func (e *Engine) groupsOfSandboxes() ([]id.Sandbox, error) {
	names, err := e.cgroups.Children(e.group())
	if err != nil {
		return nil, err
	}
	var uids []id.Sandbox
	for _, name := range names {
		if uid, err := id.ParseSandbox(strings.ToUpper(name)); err == nil && name == uid.Lower() {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

func (e *Engine) listNetwork(_ context.Context, s *stock) error {
	if e.cfg.Network.Disable {
		return nil
	}
	broken, err := e.network.Fault()
	if err != nil {
		return err
	}
	if broken != "" {
		s.add(inventory.Object{Kind: inventory.Network, Name: broken})
	}
	links, err := e.network.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Whole || l.UID == "" { // one that is not whole is as good as missing
			s.add(inventory.Object{Kind: inventory.Interface, Name: l.Name, UID: l.UID})
		}
	}
	for uid, addr := range e.network.Addresses() {
		s.add(inventory.Object{Kind: inventory.Address, Name: addr.String(), UID: uid})
	}
	return nil
}

// entries lists the names in a folder; one that is not there has none.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, nil
}

// modified is when something changed last; zero if it cannot be told.
func modified(path string) time.Time {
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
