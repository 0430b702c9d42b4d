//go:build systemd

package systemd_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree lists everything below a folder, with its kind and mode.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		list = append(list, info.Mode().String()+" "+strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestInstall_IsUndoneExactly(t *testing.T) {
	for _, prefix := range []string{"/usr/local", "/usr"} {
		t.Run(prefix, func(t *testing.T) {
			dest := t.TempDir()
			// What was there stays, folders without anything in them too.
			err := errors.Join(
				os.MkdirAll(filepath.Join(dest, prefix, "bin"), 0o755),
				os.MkdirAll(filepath.Join(dest, prefix, "lib/systemd/system"), 0o750),
				os.WriteFile(filepath.Join(dest, prefix, "lib/systemd/system/other.service"), []byte("[Unit]\n"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			before := tree(t, dest)
			makeTarget(t, "install", dest, prefix)
			first := tree(t, dest)
			makeTarget(t, "install", dest, prefix) // an upgrade
			if second := tree(t, dest); !slices.Equal(first, second) {
				t.Errorf("installed again it is %v, was %v", second, first)
			}
			for _, want := range []string{"bin/staddle", "lib/staddle/containerd", "lib/systemd/system/staddle.target", "share/staddle/node.yaml",
				"lib/sysusers.d/staddle.conf", "lib/systemd/system/staddle-sandboxhost.service.d/fdstore.conf"} {
				if _, err := os.Stat(filepath.Join(dest, prefix, want)); err != nil {
					t.Error(err)
				}
			}
			unit, err := os.ReadFile(filepath.Join(dest, prefix, "lib/systemd/system/staddle-storage.service"))
			if err != nil || !strings.Contains(string(unit), "ExecStart="+prefix+"/lib/staddle/staddle-node storage\n") {
				t.Errorf("the unit does not start what was installed (%v):\n%s", err, unit)
			}
			makeTarget(t, "uninstall", dest, prefix)
			if after := tree(t, dest); !slices.Equal(before, after) {
				t.Errorf("left is %v, was %v", after, before)
			}
		})
	}
}

// makeTarget runs the installer as make does, without building anew.
func makeTarget(t *testing.T, target, dest, prefix string) {
	t.Helper()
	if _, err := command("env", "DESTDIR="+dest, "PREFIX="+prefix, "SYSTEMD_VERSION=254", "../../tools/install.sh", target); err != nil {
		t.Fatal(err)
	}
}
