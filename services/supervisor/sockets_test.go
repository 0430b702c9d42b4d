package supervisor

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

func TestMendAll(t *testing.T) {
	root, err := os.MkdirTemp("", "s") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	paths, log := config.Paths{Root: root}, slog.New(slog.NewTextHandler(t.Output(), nil))
	if err := mendAll(paths, log); err != nil {
		t.Errorf("without second names: %v", err)
	}
	if err := errors.Join(os.MkdirAll(paths.Run(), 0o755), os.MkdirAll(paths.SocketSpares(), 0o700)); err != nil {
		t.Fatal(err)
	}
	path, spare := paths.Socket("storage"), filepath.Join(paths.SocketSpares(), "storage.sock")
	l, err := rpc.Listen(path, rpc.DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // its path is gone then
	if err := rpc.Spare(path, spare); err != nil {
		t.Fatal(err)
	}
	reached := func(when string) {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		_ = conn.Close()
	}
	for _, lost := range []string{path, paths.Run()} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := mendAll(paths, log); err != nil {
				t.Fatal(err)
			}
			reached("after the loss of " + lost)
		}
	}

	// What somebody else serves in its place is his.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := mendAll(paths, log); !errors.Is(err, fault.Conflict) {
		t.Errorf("with a stranger in its place: got %v, want Conflict", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}
