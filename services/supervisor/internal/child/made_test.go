package child

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A foreign program that loses its socket is told lost at once, also before it has
// said a word; that it removes what its predecessor left is no loss.
func TestKeepPlaces_TellsOfAForeignSocketThatIsLost(t *testing.T) {
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a few files
	path := filepath.Join(dir, "its", "own.sock")
	leave := func() {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	leave() // by a predecessor
	lost := make(chan int, 8)
	r := New(Config{
		Specs:  []Spec{{Name: "a", Command: []string{"/bin/sleep", "1000"}, Makes: path, Foreign: true}},
		RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "logs"),
	}, Deps{Log: slog.New(slog.DiscardHandler), Spawner: serving(t), Exited: func(Exit) {}, Lost: func(_ string, pid int, _ string) { lost <- pid }})
	running(t, r)
	pid, err := r.Start(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second loss is told as well: the first was not heeded
		select {
		case got := <-lost:
			t.Fatalf("process %d was told lost while it has its socket, or never had one", got)
		case <-time.After(10 * settle):
		}
		leave()
		if err := os.Remove(path); err != nil { // at once: nobody could have looked meanwhile
			t.Fatal(err)
		}
		select {
		case got := <-lost:
			if got != pid {
				t.Errorf("process %d was told lost, want %d", got, pid)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nobody was told of the loss")
		}
	}
	if err := errors.Join(os.Remove(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o755)); err != nil {
		t.Fatal(err)
	}
}
