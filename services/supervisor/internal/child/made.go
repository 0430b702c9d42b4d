package child

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// A foreign program makes its socket itself and does not bring it back when it is
// lost. While it starts nobody has asked it anything yet, so that its silence says
// nothing: only who saw the socket come can tell that it went.

// noteMade remembers that the socket of a foreign program came into its place, by an
// event of the kernel.
func (r *Runner) noteMade(e fsnotify.Event) {
	if !e.Has(fsnotify.Create) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.children {
		if c.spec.Makes != "" && c.spec.Makes == e.Name && c.pid != 0 {
			c.made = true
		}
	}
}

// mendMade has a foreign program started again that had its socket, and has lost it.
func (r *Runner) mendMade(c *child) error {
	here, err := servedAt(c.spec.Makes)
	if err != nil {
		return fmt.Errorf("component %s: %w", c.spec.Name, err)
	}
	r.mu.Lock()
	pid := c.pid
	if pid != 0 && here == pid { // also where the event was another program's to see
		c.made = true
	}
	lost := pid != 0 && here == nowhere && c.made
	if lost {
		c.made = false // once
	}
	r.mu.Unlock()
	if lost {
		r.deps.Lost(c.spec.Name, pid, "its socket "+c.spec.Makes+" was removed")
	}
	return nil
}

// What is found at the path of a socket, besides the process that serves it.
const (
	nowhere  = 0  // there is nothing
	unserved = -1 // there is something, and nobody serves it
)

// servedAt returns the process that listens at a path.
func servedAt(path string) (pid int, err error) {
	if missing(path) {
		return nowhere, nil
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nowhere, nil
	case err != nil:
		return unserved, nil // whoever is to serve it may not have begun
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return unserved, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return unserved, fmt.Errorf("ask who serves %s: %w", path, err)
	}
	return int(cred.Pid), nil
}

// madeFolders are the folders in which foreign programs make their sockets, and that
// are there.
func (r *Runner) madeFolders() []string {
	var folders []string
	for _, c := range r.all() {
		if dir := filepath.Dir(c.spec.Makes); c.spec.Makes != "" && !missing(dir) {
			folders = append(folders, dir)
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// made are the paths at which foreign programs make their sockets.
func (r *Runner) made() []string {
	var paths []string
	for _, s := range r.cfg.Specs {
		if s.Makes != "" {
			paths = append(paths, s.Makes)
		}
	}
	return paths
}
