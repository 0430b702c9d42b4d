package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PIDs is how many tasks a group with all below it has, and how many it may have; 0 for
// as many as there can be, also where the group is not there or nobody counts.
func (t *Tree) PIDs(group string) (now, most int64, err error) {
	for _, h := range t.hierarchies {
		if !h.has("pids") {
			continue
		}
		if most, err = number(filepath.Join(h.path(group), "pids.max")); err != nil || most == 0 {
			return 0, 0, err
		}
		now, err = number(filepath.Join(h.path(group), "pids.current"))
		return now, most, err
	}
	return 0, 0, nil
}

// number reads a file with one number; 0 for "max" and for one that is not there.
func number(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	text := strings.TrimSpace(string(raw))
	if text == "max" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}
