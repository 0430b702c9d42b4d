package containerd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	root := t.TempDir()
	cfg := Config{
		Root: filepath.Join(root, "var/containerd"), State: filepath.Join(root, "run/containerd"),
		Address: filepath.Join(root, "run/containerd.sock"), UID: 1003, GID: 1003,
	}
	for range 2 {
		path, err := cfg.Write()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"version = 3\n", `address = "` + cfg.Address + `"`, "uid = 1003", "imports = []", `"io.containerd.grpc.v1.cri"`} {
			if !strings.Contains(string(text), want) {
				t.Errorf("got\n%s\nwant it to contain %q", text, want)
			}
		}
	}
}

func TestWrite_LeavesTheSameFileAlone(t *testing.T) {
	root := t.TempDir()
	cfg := Config{Root: filepath.Join(root, "var"), State: filepath.Join(root, "run"), Address: filepath.Join(root, "run/sock"), UID: 1}
	path, err := cfg.Write()
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Write(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again although nothing changed: %v", err)
	}
	cfg.UID = 2
	if _, err := cfg.Write(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "uid = 2") {
		t.Errorf("a change was not written: %v\n%s", err, text)
	}
}

// After a reboot, which empties the state, containerd has to find the namespaces in
// which something of its tasks lasts.
func TestWrite_NamesNamespacesThatHadTasks(t *testing.T) {
	root := t.TempDir()
	cfg := Config{Root: filepath.Join(root, "var"), State: filepath.Join(root, "run"), Address: filepath.Join(root, "run/sock")}
	if err := os.MkdirAll(filepath.Join(cfg.Root, "io.containerd.runtime.v2.task/staddle/left"), 0o711); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := cfg.Write(); err != nil {
			t.Fatal(err)
		}
		found, err := filepath.Glob(filepath.Join(cfg.State, "io.containerd.runtime.v2.task/*"))
		if err != nil || len(found) != 1 || filepath.Base(found[0]) != "staddle" {
			t.Errorf("found %v, %v", found, err)
		}
	}
}
