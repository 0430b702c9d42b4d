package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// unlimited is from where on a limit is none: version 1 of control groups writes the
// largest number of pages there is.
const unlimited = 1 << 60

// MemoryLeft is what the limit of a group and of those around it leave of memory, and the
// tightest of these limits; 0 for no limit. Page cache that can be given back counts as
// left. The group around all is that of the machine, or of the container in which this
// runs.
func (t *Tree) MemoryLeft(group string) (available, limit int64, err error) {
	for _, h := range t.hierarchies {
		if !h.has("memory") {
			continue
		}
		for at := path.Clean("/" + group); ; at = path.Dir(at) {
			left, most, err := h.memoryLeft(at)
			if err != nil {
				return 0, 0, fmt.Errorf("read memory of control group %s: %w", at, err)
			}
			if most > 0 {
				if limit == 0 {
					available, limit = left, most
				}
				available, limit = min(available, left), min(limit, most)
			}
			if at == "/" {
				return available, limit, nil
			}
		}
	}
	return 0, 0, nil
}

// memoryLeft is about one group; 0 for no limit, or where the group is not there.
func (h hierarchy) memoryLeft(group string) (left, limit int64, err error) {
	files := [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	if h.unified {
		files = [...]string{"memory.max", "memory.current", "inactive_file"}
	}
	dir := h.path(group)
	limit, err = number(filepath.Join(dir, files[0]))
	if err != nil || limit == 0 || limit >= unlimited {
		return 0, 0, err
	}
	usage, err := number(filepath.Join(dir, files[1]))
	if err != nil {
		return 0, 0, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return 0, 0, nil // it went away meanwhile
	}
	if err != nil {
		return 0, 0, err
	}
	cache, err := field(raw, files[2])
	if err != nil {
		return 0, 0, err
	}
	return max(0, limit-max(0, usage-int64(cache))), limit, nil
}
