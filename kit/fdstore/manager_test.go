package fdstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
)

func TestManager_ClosesWhatItRefuses(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{MaxFiles: 1}, self)
	s := client(t, m.socket)
	if err := s.Push("one", w2(t)); err != nil {
		t.Fatal(err)
	}
	r, w := pipe(t)
	tests := []struct{ name, text, want string }{
		{"one too many", "FDSTORE=1\nFDNAME=two", "1 files are kept already"},
		{"bad name", "FDSTORE=1\nFDNAME=a:b", "contains"},
		{"nonsense", "hello", "no ="},
		{"too long", "STATUS=" + strings.Repeat("x", 9000), "longer than"},
	}
	for _, tt := range tests {
		send(t, m.socket, tt.text, w)
		if line := next(t, m.log.ch); !strings.Contains(line, tt.want) {
			t.Errorf("%s: log says %q, want %q", tt.name, line, tt.want)
		}
	}
	send(t, m.socket, "READY=1", w) // a file that nobody asked for
	next(t, m.messages)
	send(t, m.socket, "FDSTORE=1\nFDNAME=three", w, w)
	if line := next(t, m.log.ch); !strings.Contains(line, "2 files for one name") {
		t.Errorf("log says %q", line)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	requireEnd(t, r)
	if got := names(m, "self"); !slices.Equal(got, []string{"one"}) {
		t.Errorf("kept %q", got)
	}
}

func TestManager_IgnoresStrangers(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, func(int) string { return "" })
	r, w := pipe(t)
	send(t, m.socket, "FDSTORE=1\nFDNAME=x\nREADY=1", w)
	if line := next(t, m.log.ch); !strings.Contains(line, "level=DEBUG") {
		t.Errorf("log says %q", line)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	requireEnd(t, r)
	if len(m.messages) != 0 || len(m.All()) != 0 {
		t.Errorf("a stranger was heard: %d messages, kept %v", len(m.messages), m.All())
	}
}

func TestManager_BoundsTheNamesOfOneOwner(t *testing.T) {
	m := fdstore.NewManager(fdstore.ManagerConfig{}, fdstore.ManagerDeps{})
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 1000 {
		fd, err := unix.Dup(int(os.Stdin.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Put("o", fmt.Sprintf("%0250d", i), fd); errors.Is(err, fault.Exhausted) {
			var all []string
			for _, s := range m.All() {
				all = append(all, s.Name)
			}
			cmd := exec.Command("/bin/true")
			cmd.Env = fdstore.Env("", all)
			if err := cmd.Run(); err != nil {
				t.Errorf("a child cannot be given the %d names: %v", i, err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("1,000 names of 250 characters were all taken")
}

func TestManager_ReexecKeepsSocketAndFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	first := fdstore.NewManager(fdstore.ManagerConfig{Path: path}, fdstore.ManagerDeps{Owner: func(int, uint32) (string, bool) { return "self", true }})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- first.Run(ctx, func() { close(ready) }) }()
	next(t, ready)
	s := client(t, path)
	if err := s.Push("a", w2(t)); err != nil {
		t.Fatal(err)
	}
	socket, err := first.SocketFile()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := next(t, done); err != nil {
		t.Fatal(err)
	}
	send(t, path, "READY=1") // while nobody reads
	second := newManager(t, fdstore.ManagerConfig{Path: path, Socket: socket}, self)
	for _, kept := range first.All() {
		if err := second.Put(kept.Owner, kept.Name, kept.FD); err != nil {
			t.Fatal(err)
		}
	}
	if msg := next(t, second.messages); !msg.Ready || msg.Owner != "self" || msg.PID != os.Getpid() {
		t.Errorf("got %+v, want the message that was on its way", msg)
	}
	if err := s.Push("b", w2(t)); err != nil {
		t.Fatal(err)
	}
	if got := names(second, "self"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("kept %q", got)
	}
}

// While a Manager is frozen nothing is read, and nothing that was sent is lost.
func TestManager_FreezeHoldsMessagesBack(t *testing.T) {
	m := newManager(t, fdstore.ManagerConfig{}, self)
	thaw := m.Freeze()
	send(t, m.socket, "FDSTORE=1\nFDNAME=late", w2(t))
	send(t, m.socket, "READY=1")
	for range 100 {
		if got := names(m, "self"); len(got) > 0 {
			t.Fatalf("kept %q while frozen", got)
		}
	}
	thaw()
	next(t, m.messages) // the second message, so that the first is done with
	if got := names(m, "self"); !slices.Equal(got, []string{"late"}) {
		t.Errorf("kept %q, want what was sent meanwhile", got)
	}
}
