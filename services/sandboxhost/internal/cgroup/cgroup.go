// Package cgroup owns what sandboxhost does with control groups itself: reading
// how often the kernel killed for memory, making the group of the shims, and
// removing what the runtime leaves behind.
//
// It works on the unified hierarchy, on separate version 1 hierarchies, and on
// both at once; which there are is read from the mount table. Paths are within a
// hierarchy and begin with "/". It must never touch a group that is not below a
// path that it was given, and never make the groups of containers: that is the
// runtime's business.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// clearLimit bounds how long Clear waits for killed processes to leave.
const clearLimit = 2 * time.Second

// hierarchy is one mounted tree of groups.
type hierarchy struct {
	dir         string
	unified     bool
	controllers []string
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

func (h hierarchy) path(group string) string { return filepath.Join(h.dir, group) }

// Tree is all hierarchies of this machine.
type Tree struct {
	hierarchies []hierarchy
}

// Open reads which hierarchies there are.
func Open() (*Tree, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return parse(table, os.ReadFile)
}

// parse finds the hierarchies in a mount table.
func parse(table []byte, read func(string) ([]byte, error)) (*Tree, error) {
	t := &Tree{}
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		const mountPoint = 4
		if !ok || len(left) <= mountPoint || len(right) < 3 {
			continue
		}
		h := hierarchy{dir: unescape(left[mountPoint])}
		switch right[0] {
		case "cgroup2":
			h.unified = true
			raw, err := read(filepath.Join(h.dir, "cgroup.controllers"))
			if err != nil {
				return nil, fmt.Errorf("read controllers: %w", err)
			}
			h.controllers = strings.Fields(string(raw))
		case "cgroup":
			h.controllers = strings.Split(right[2], ",")
		default:
			continue
		}
		if !slices.ContainsFunc(t.hierarchies, func(o hierarchy) bool { return o.dir == h.dir }) {
			t.hierarchies = append(t.hierarchies, h)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	if len(t.hierarchies) == 0 {
		return nil, fault.New(fault.Invalid, "read mount table: no control groups are mounted; mount cgroup2 on /sys/fs/cgroup")
	}
	return t, nil
}

// unescape turns the table's octal escapes back.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// OOMKills is how many processes of a group the kernel has killed for memory. A
// group that is not there has had none that can still be counted.
func (t *Tree) OOMKills(group string) (uint64, error) {
	for _, h := range t.hierarchies {
		if !h.has("memory") {
			continue
		}
		file := "memory.oom_control"
		if h.unified {
			file = "memory.events"
		}
		raw, err := os.ReadFile(filepath.Join(h.path(group), file))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("count kills for memory: %w", err)
		}
		return field(raw, "oom_kill")
	}
	return 0, nil
}

// field reads a "name value" line.
func field(raw []byte, name string) (uint64, error) {
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key == name {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", name, err)
			}
			return n, nil
		}
	}
	return 0, nil
}

// CanLimitSwap says whether memory and swap can be limited together. A kernel that
// does not count swap has no file for the limit.
func (t *Tree) CanLimitSwap() bool {
	for _, h := range t.hierarchies {
		if !h.has("memory") {
			continue
		}
		if !h.unified {
			return h.any("memory.memsw.limit_in_bytes")
		}
		// The root has no limits. Before the first group has one it cannot be told.
		return h.any("*/memory.swap.max") || !h.any("*/memory.max")
	}
	return false
}

// any says whether there is a file that matches.
func (h hierarchy) any(pattern string) bool {
	found, err := filepath.Glob(filepath.Join(h.dir, pattern))
	return err == nil && len(found) > 0 // the only error is a bad pattern
}

// CanWeighIO says whether the kernel shares disks between groups by weight. A group
// that is there is asked, for the root of a hierarchy has no weight; in the unified
// hierarchy also the root, which has what goes with the weight before any group
// was given the controller.
func (t *Tree) CanWeighIO(group string) (bool, error) {
	for _, h := range t.hierarchies {
		var signs []string
		switch {
		case h.unified && h.has("io"):
			signs = []string{filepath.Join(h.dir, "io.cost.qos"), filepath.Join(h.path(group), "io.weight"), filepath.Join(h.path(group), "io.bfq.weight")}
		case h.has("blkio"):
			signs = []string{filepath.Join(h.path(group), "blkio.weight"), filepath.Join(h.path(group), "blkio.bfq.weight")}
		}
		for _, file := range signs {
			_, err := os.Stat(file)
			if err == nil {
				return true, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return false, fmt.Errorf("look for weight of control group %s: %w", group, err)
			}
		}
	}
	return false, nil
}

// Exists says whether a group is there in any hierarchy.
func (t *Tree) Exists(group string) (bool, error) {
	for _, h := range t.hierarchies {
		_, err := os.Stat(h.path(group))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look for control group: %w", err)
		}
	}
	return false, nil
}

// Children lists the names of the groups directly below one, in any hierarchy.
func (t *Tree) Children(group string) ([]string, error) {
	var names []string
	for _, h := range t.hierarchies {
		entries, err := os.ReadDir(h.path(group))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Ensure makes a group in every hierarchy, ready to take processes.
func (t *Tree) Ensure(group string) error {
	for _, h := range t.hierarchies {
		dir := h.dir
		for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			parent := dir
			dir = filepath.Join(dir, name)
			err := os.Mkdir(dir, 0o755)
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make control group: %w", err)
			}
			if h.has("cpuset") && !h.unified {
				if err := inheritCPUs(parent, dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// inheritCPUs fills in what a new group of version 1 lacks: without processors
// and memory nodes it takes no process.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return fmt.Errorf("read control group: %w", err)
		}
		if len(bytes.TrimSpace(have)) > 0 {
			continue
		}
		want, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return fmt.Errorf("read control group: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), want, 0); err != nil {
			return fmt.Errorf("fill in control group: %w", err)
		}
	}
	return nil
}

// Clear ends every process below a group and removes the group, in every
// hierarchy: a new container must never share one with leftovers of an old.
func (t *Tree) Clear(group string) error {
	exists, err := t.Exists(group)
	if err != nil || !exists {
		return err
	}
	deadline := time.Now().Add(clearLimit)
	for pause := time.Millisecond; ; pause *= 2 {
		if err := t.kill(group); err != nil {
			return err
		}
		err := t.Remove(group)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause) //nolint:forbidigo // ends after clearLimit; the kernel tells of an empty group only in the unified hierarchy
	}
}

// kill ends what runs below a group. The unified hierarchy does that at once, so
// that nothing in it is born meanwhile.
func (t *Tree) kill(group string) error {
	for _, h := range t.hierarchies {
		if !h.unified {
			continue
		}
		if err := killAll(h.path(group)); err != nil {
			return fmt.Errorf("end processes of control group %s: %w", group, err)
		}
	}
	pids, err := t.Processes(group)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end processes of control group %s: %w", group, err)
		}
	}
	return nil
}

// killAll has the kernel end all below a group of the unified hierarchy. Before 5.14
// it could not.
func killAll(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	// The group went away meanwhile, or a workload with the right to do so has made
	// it one of threads, which cannot be ended like this.
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Processes lists what runs in a group and below it, in any hierarchy, each
// process once. A group that is not there has none.
func (t *Tree) Processes(group string) ([]int, error) {
	var pids []int
	for _, h := range t.hierarchies {
		err := filepath.WalkDir(h.path(group), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !e.IsDir() {
				return err
			}
			found, err := processesIn(path)
			pids = append(pids, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of control group %s: %w", group, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func processesIn(dir string) ([]int, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // the group went away meanwhile
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for text := range strings.FieldsSeq(string(raw)) {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 0 {
			continue // 0 is a process of another pid namespace
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Remove removes a group with all below it, in every hierarchy. One that holds
// processes is fault.Unavailable; one that is not there is removed.
func (t *Tree) Remove(group string) error {
	var errs []error
	for _, h := range t.hierarchies {
		if err := removeTree(h.path(group)); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fault.New(fault.Unavailable, "remove control group %s: %w", group, errors.Join(errs...))
	}
	return nil
}

// RemoveEmpty removes a group that is not in use, and leaves one that is, in every
// hierarchy.
func (t *Tree) RemoveEmpty(group string) error {
	for _, h := range t.hierarchies {
		err := unix.Rmdir(h.path(group))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove control group %s: %w", group, err)
		}
	}
	return nil
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
