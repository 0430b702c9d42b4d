package config

import (
	"fmt"
	"path/filepath"
)

func (c *checks) logs(l Logs) {
	for _, s := range []struct {
		key  string
		size Size
	}{{"logs.max_size_per_stream", l.MaxSizePerStream}, {"logs.cri.max_size", l.CRI.MaxSize}} {
		c.must(s.size >= 64<<10 && s.size <= 1<<40, s.key, fmt.Sprintf("%s is out of bounds", s.size), "write a size from 64KiB to 1TiB")
	}
	dir := l.CRI.Directory
	c.must(dir == "" || filepath.IsAbs(dir) && filepath.Clean(dir) == dir && dir != "/", "logs.cri.directory",
		fmt.Sprintf("%q is no absolute path without . and ..", dir), `write the path of a folder for this node alone, like /var/log/staddle, or "" for no files`)
	c.must(l.CRI.MaxFiles >= 2 && l.CRI.MaxFiles <= 1000, "logs.cri.max_files", fmt.Sprintf("%d is out of bounds", l.CRI.MaxFiles), "write a number from 2 to 1000")
}
