package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plant writes files of control groups below dir.
func plant(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemoryLeft(t *testing.T) {
	const none = "9223372036854771712\n"
	for name, c := range map[string]struct {
		unified          bool
		files            map[string]string
		available, limit int64
		fails            bool
	}{
		"version 2, the group": {true, map[string]string{
			"all/memory.max": "1000\n", "all/memory.current": "700\n", "all/memory.stat": "anon 300\ninactive_file 200\nactive_file 100\n",
		}, 500, 1000, false},
		"version 2, tightest around it": {true, map[string]string{
			"memory.max": "2000\n", "memory.current": "1900\n", "memory.stat": "inactive_file 0\n",
			"all/memory.max": "1000\n", "all/memory.current": "100\n", "all/memory.stat": "inactive_file 0\n",
		}, 100, 1000, false},
		"version 2, in a container": {true, map[string]string{
			"memory.max": "2000\n", "memory.current": "500\n", "memory.stat": "inactive_file 100\n", "all/memory.max": "max\n",
		}, 1600, 2000, false},
		"version 2, none": {true, map[string]string{"all/memory.max": "max\n"}, 0, 0, false},
		"version 1, none": {false, map[string]string{"memory.limit_in_bytes": none, "all/memory.limit_in_bytes": none}, 0, 0, false},
		"version 1, the group": {false, map[string]string{
			"memory.limit_in_bytes": none, "all/memory.limit_in_bytes": "1000\n", "all/memory.usage_in_bytes": "700\n",
			"all/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
		}, 500, 1000, false},
		"more in use than may be": {true, map[string]string{
			"all/memory.max": "1000\n", "all/memory.current": "1700\n", "all/memory.stat": "inactive_file 0\n",
		}, 0, 1000, false},
		"no group":   {true, nil, 0, 0, false},
		"unreadable": {true, map[string]string{"all/memory.max": "many\n"}, 0, 0, true},
	} {
		dir := t.TempDir()
		plant(t, dir, c.files)
		tree := &Tree{hierarchies: []hierarchy{{dir: t.TempDir(), controllers: []string{"pids"}}, {dir: dir, unified: c.unified, controllers: []string{"memory"}}}}
		available, limit, err := tree.MemoryLeft("/all")
		if available != c.available || limit != c.limit || (err != nil) != c.fails {
			t.Errorf("%s: got %d of %d, %v, want %d of %d", name, available, limit, err, c.available, c.limit)
		}
	}
}

// A real group with a limit leaves no more than that, and a group in it no more either.
func TestMemoryLeft_Real(t *testing.T) {
	tree, group := realTree(t)
	if err := tree.Ensure(group + "/in"); err != nil {
		t.Fatal(err)
	}
	limited := false
	for _, h := range tree.hierarchies {
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			path := filepath.Join(h.path(group), file)
			if _, err := os.Stat(path); h.has("memory") && err == nil {
				if err := os.WriteFile(path, []byte("67108864"), 0); err != nil {
					t.Fatal(err)
				}
				limited = true
			}
		}
	}
	available, limit, err := tree.MemoryLeft(group + "/in")
	if err != nil || limited && (limit <= 0 || limit > 64<<20 || available <= 0 || available > limit) {
		t.Errorf("got %d of %d, %v", available, limit, err)
	}
	if !limited {
		t.Error("no hierarchy limits memory")
	}
}

// realTree is the hierarchies of this machine, and a group of its own for the test.
func realTree(t *testing.T) (*Tree, string) {
	t.Helper()
	tree, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/sdcg%d-%s", os.Getpid(), strings.ToLower(t.Name()))
	if err := tree.Ensure(group); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Clear(group); err != nil {
			t.Error(err)
		}
	})
	return tree, group
}
