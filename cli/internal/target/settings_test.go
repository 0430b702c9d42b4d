package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/target"
)

// home gives the test a home of its own and returns it.
func home(t *testing.T) target.Home {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, ".config"))
	return target.Home{Dir: filepath.Join(dir, ".config"), UID: -1, GID: -1}
}

// identity writes the files of an operator below root and returns a context.
func identity(t *testing.T, root string) target.Context {
	t.Helper()
	pki := filepath.Join(root, "etc", "pki")
	if err := os.MkdirAll(pki, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.crt", "operator.crt", "operator.key"} {
		if err := os.WriteFile(filepath.Join(pki, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return target.Context{
		Root: root, Coordinator: "127.0.0.1:9", CA: filepath.Join(pki, "ca.crt"),
		Certificate: filepath.Join(pki, "operator.crt"), Key: filepath.Join(pki, "operator.key"),
	}
}

func load(t *testing.T, f target.Flags) *target.Settings {
	t.Helper()
	s, err := target.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLoad_Precedence(t *testing.T) {
	h := home(t)
	if s := load(t, target.Flags{}); s.NodeSocket != "/run/staddle/sandboxhost.sock" || s.CA != "/etc/staddle/pki/ca.crt" || s.Direct {
		t.Errorf("without anything: %+v, want the system's places", s)
	}
	root := t.TempDir()
	if err := h.Save(identity(t, root)); err != nil {
		t.Fatal(err)
	}
	s := load(t, target.Flags{})
	if s.Paths.Root != root || s.Coordinator != "127.0.0.1:9" || s.Key != filepath.Join(h.Dir, "staddle", "operator.key") {
		t.Errorf("with a context: %+v", s)
	}
	other := t.TempDir()
	if s := load(t, target.Flags{Root: other}); s.Paths.Root != other || !strings.HasPrefix(s.CA, other) {
		t.Errorf("--root over the context: %+v", s)
	}
	s = load(t, target.Flags{Coordinator: "c:1", CA: "/a", NodeSocket: "/s"})
	if s.Coordinator != "c:1" || s.CA != "/a" || s.NodeSocket != "/s" || !s.Direct || s.Paths.Root != root {
		t.Errorf("flags over the context: %+v", s)
	}
	if s := load(t, target.Flags{System: true}); s.Paths.Root != "" {
		t.Errorf("the system's own: %+v", s)
	}
}

func TestLoad_ReadsTheCoordinatorOfTheRoot(t *testing.T) {
	home(t)
	root := t.TempDir()
	identity(t, root)
	if err := os.WriteFile(filepath.Join(root, "etc", "node.yaml"), []byte("version: 1\ncoordinator: {address: \"h:77\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := load(t, target.Flags{Root: root}); s.Coordinator != "h:77" {
		t.Errorf("coordinator %q", s.Coordinator)
	}
}

func TestHome_SaveIsPrivateAndRepeatableAndForgotten(t *testing.T) {
	h := home(t)
	root := t.TempDir()
	for range 2 {
		if err := h.Save(identity(t, root)); err != nil {
			t.Fatal(err)
		}
	}
	folder := filepath.Join(h.Dir, "staddle")
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 {
		t.Errorf("files %v, want four and no temporary one", entries)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if err := h.Forget("/another"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Read(); err != nil {
		t.Errorf("the context of one root was forgotten with another: %v", err)
	}
	if err := h.Forget(root); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Read(); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Read = %v, want NotFound", err)
	}
}

func TestLoad_AWrongContextIsRefusedAndNotSkipped(t *testing.T) {
	h := home(t)
	if err := os.MkdirAll(filepath.Join(h.Dir, "staddle"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "staddle", "config.yaml"), []byte("version: 1\ncordinator: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := target.Load(target.Flags{})
	if _, ok := errors.AsType[*config.Error](err); !ok || !strings.Contains(err.Error(), `config.yaml:2: cordinator: the key is unknown; the nearest known key is "coordinator"`) {
		t.Errorf("error %v", err)
	}
}
