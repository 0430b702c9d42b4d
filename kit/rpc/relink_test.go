package rpc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/kit/fault"
)

// reached connects to path and returns nil if l gets the connection.
func reached(t *testing.T, path string, l net.Listener) error {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	accepted, err := l.Accept()
	return errors.Join(err, accepted.Close(), conn.Close())
}

func TestRelink_BringsBackTheSameSocket(t *testing.T) {
	dir := shortDir(t)
	path, spare := filepath.Join(dir, "a.sock"), filepath.Join(dir, "spare")
	l, err := Listen(path, DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 { // the second spare takes the place of the first
		if err := Spare(path, spare); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := errors.Join(os.Remove(path), Relink(path, spare), Relink(path, spare)); err != nil {
			t.Fatal(err)
		}
		if err := reached(t, path, l); err != nil {
			t.Errorf("the old listener is not reached: %v", err)
		}
	}
}

func TestRelink_LeavesWhatIsNotOurs(t *testing.T) {
	dir := shortDir(t)
	path, spare := filepath.Join(dir, "a.sock"), filepath.Join(dir, "spare")
	l, err := Listen(path, DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(Spare(path, spare), os.Remove(path), os.WriteFile(path, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Relink(path, spare); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v over a plain file, want Invalid", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(path, DefaultSocketMode)
	if err != nil {
		t.Fatal(err)
	}
	if err := Relink(path, spare); !errors.Is(err, fault.Conflict) {
		t.Errorf("got %v over a socket that another serves, want Conflict", err)
	}
	// Dead, and left behind.
	other.(*ownSocket).path = ""
	if err := errors.Join(other.Close(), Relink(path, spare), reached(t, path, l)); err != nil {
		t.Errorf("got %v over a socket that nobody serves, want it replaced", err)
	}
}
