package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

const (
	emptyTimeout = 5 * time.Second
	emptyPoll    = 2 * time.Millisecond
)

// cgroupMounts are where the second version of cgroups is found: beside the first
// on a hybrid host, or alone.
var cgroupMounts = []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// CgroupBase makes the cgroup that holds those of the components of a node. It
// returns fault.Unavailable where the host has no cgroup v2 that we
// may write to.
func CgroupBase(paths config.Paths) (string, error) {
	for _, mount := range cgroupMounts {
		var st unix.Statfs_t
		if err := unix.Statfs(mount, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		base := filepath.Join(mount, paths.ComponentCgroup())
		if err := os.MkdirAll(base, 0o755); err != nil {
			return "", fault.New(fault.Unavailable, "make cgroup: %w", err)
		}
		return base, nil
	}
	return "", fault.New(fault.Unavailable, "make cgroup: no cgroup v2 is mounted")
}

// cgroup is the cgroup of one component. The zero value is none, and does
// nothing.
type cgroup struct{ dir string }

func makeCgroup(base, name string) (cgroup, error) {
	if base == "" {
		return cgroup{}, nil
	}
	g := cgroup{filepath.Join(base, name)}
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return cgroup{}, fmt.Errorf("make cgroup: %w", err)
	}
	return g, nil
}

func (g cgroup) exists() bool { return g.dir != "" }

// open returns the folder for a clone into it.
func (g cgroup) open() (*os.File, error) {
	f, err := os.OpenFile(g.dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return f, nil
}

// kill ends everything in it, also what has left its parent behind.
func (g cgroup) kill() error {
	if !g.exists() {
		return nil
	}
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// empty reports whether no process is in it.
func (g cgroup) empty() (bool, error) {
	if !g.exists() {
		return true, nil
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read cgroup: %w", err)
	}
	return bytes.Contains(text, []byte("populated 0")), nil
}

// clear kills what is in it and returns when it is seen empty. A process that the
// kernel cannot end makes it Unavailable.
func (g cgroup) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for killed := false; ; {
		empty, err := g.empty()
		if empty || err != nil {
			return err
		}
		if !killed {
			if err := g.kill(); err != nil {
				return err
			}
			killed = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "clear cgroup %s: processes are left in it", g.dir)
		}
	}
}

// fresh makes the cgroup ready for the next process, without waiting: one that the
// kernel could not end so far makes it Unavailable, and is told to end again.
func (g cgroup) fresh() error {
	empty, err := g.empty()
	if err == nil && !empty {
		err = fault.New(fault.Unavailable, "processes of the last one are left in cgroup %s", g.dir)
		return errors.Join(err, g.kill())
	}
	if err != nil {
		return err
	}
	return g.renew()
}

// renew makes the cgroup anew; it must be empty. Linux with the counter of kills
// that came in 6.14 compares that of the target with that of the parent's own
// cgroup, so that a process cloned into a cgroup that was ever killed is killed at
// once; a new cgroup counts from zero again.
func (g cgroup) renew() error {
	if !g.exists() {
		return nil
	}
	if err := g.remove(); err != nil {
		return err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// removeUnused drops a cgroup that others may have a part in.
func (g cgroup) removeUnused() error {
	err := g.remove()
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// remove drops the cgroup, which must be empty.
func (g cgroup) remove() error {
	if !g.exists() {
		return nil
	}
	if err := os.Remove(g.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}
