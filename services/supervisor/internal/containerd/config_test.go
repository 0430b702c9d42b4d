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
