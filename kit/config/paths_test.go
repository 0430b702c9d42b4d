package config

import (
	"os"
	"path/filepath"
	"testing"
)

// Who looks into the table of mounts below the root must find what it mounted there.
func TestAt_FollowsLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": "real", "loop": "loop", "nowhere": "missing"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	for root, want := range map[string]string{
		"":                                "",
		filepath.Join(dir, "real"):        filepath.Join(dir, "real"),
		filepath.Join(dir, "link"):        filepath.Join(dir, "real"),
		filepath.Join(dir, "link/new/x"):  filepath.Join(dir, "real/new/x"),
		filepath.Join(dir, "other/new/x"): filepath.Join(dir, "other/new/x"),
	} {
		if got, err := At(root); err != nil || got.Root != want {
			t.Errorf("root %q: got %q, %v, want %q", root, got.Root, err, want)
		}
	}
	for _, bad := range []string{"loop", "nowhere/x"} {
		if got, err := At(filepath.Join(dir, bad)); err == nil {
			t.Errorf("root %q: got %q, want an error", bad, got.Root)
		}
	}
}
