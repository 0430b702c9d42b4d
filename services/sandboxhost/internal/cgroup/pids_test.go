package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPIDs(t *testing.T) {
	dir := t.TempDir()
	tree := &Tree{hierarchies: []hierarchy{{dir: dir, controllers: []string{"memory"}}, {dir: dir, controllers: []string{"cpu", "pids"}}}}
	for _, c := range []struct {
		name, current, most string
		now, limit          int64
		fails               bool
	}{
		{"limited", "17\n", "100\n", 17, 100, false},
		{"unlimited", "17\n", "max\n", 0, 0, false},
		{"absent", "", "", 0, 0, false},
		{"unreadable", "17\n", "many\n", 0, 0, true},
	} {
		group := filepath.Join(dir, c.name)
		if c.most != "" {
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"pids.current": c.current, "pids.max": c.most} {
				if err := os.WriteFile(filepath.Join(group, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		now, limit, err := tree.PIDs("/" + c.name)
		if now != c.now || limit != c.limit || (err != nil) != c.fails {
			t.Errorf("%s: got %d of %d, %v", c.name, now, limit, err)
		}
	}
}
