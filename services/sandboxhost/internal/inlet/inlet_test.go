package inlet

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// vault keeps files as a supervisor does.
type vault struct {
	absent bool // nobody does
	files  map[string]*os.File
}

func (v *vault) Push(name string, f *os.File) error {
	if v.absent {
		return fault.New(fault.Unavailable, "nobody keeps files")
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) {
		var n int
		if n, err = unix.Dup(int(fd)); err == nil {
			v.files[name] = os.NewFile(uintptr(n), name)
		}
	}), err)
}

func (v *vault) Remove(name string) error {
	if f := v.files[name]; f != nil {
		delete(v.files, name)
		return f.Close()
	}
	return nil
}

func (v *vault) Take(prefix string) map[string]*os.File {
	taken := map[string]*os.File{}
	for name, f := range v.files {
		if strings.HasPrefix(name, prefix) {
			taken[name] = f
		}
	}
	clear(v.files)
	return taken
}

// container is the pipe of a container that reads when it is told to.
type container struct {
	Place
	shim  *os.File // holds both ends
	vault *vault
}

func newContainer(t *testing.T) *container {
	t.Helper()
	c := &container{Place: Place{Container: "c", Pipe: filepath.Join(t.TempDir(), "c")}, vault: &vault{files: map[string]*os.File{}}}
	if err := unix.Mkfifo(c.Pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.shim, err = os.OpenFile(c.Pipe, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.shim.Close() })
	return c
}

// life is that of a new process.
func (c *container) life() *Inlets {
	s := New(c.vault)
	s.Adopt()
	return s
}

func (c *container) open(t *testing.T, s *Inlets, in Input) *Inlet {
	t.Helper()
	i, err := s.Open(t.Context(), c.Place, in)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// A process that dies at any of its steps leaves each byte in exactly one place, and the next one goes
// on behind the last that was counted.
func TestInlet_GoesOnWhereItDied(t *testing.T) {
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for name, die := range map[string]func(i *Inlet) (received int){
		"before all": func(*Inlet) int { return 3 },
		"with bytes that are not counted": func(i *Inlet) int {
			n, _ := i.stage.fill([]byte("DEF"))
			return 3 + n
		},
		"with bytes that are counted": func(i *Inlet) int {
			n, _ := i.stage.fill([]byte("DEF"))
			i.journal.Received += uint64(n)
			_ = i.note(true)
			return 6
		},
		"with some that went on": func(i *Inlet) int {
			n, _ := i.stage.fill([]byte("DEF"))
			i.journal.Received += uint64(n)
			_ = i.note(true)
			_ = i.stage.move(i.pipe, 2)
			return 6
		},
		"with all that went on": func(i *Inlet) int {
			n, _ := i.stage.fill([]byte("DEF"))
			i.journal.Received += uint64(n)
			_ = i.note(true)
			_ = i.stage.move(i.pipe, 3)
			return 6
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t)
			i := c.open(t, c.life(), Input{ID: id})
			if _, err := i.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			want := die(i) // nothing is closed
			next := c.open(t, c.life(), Input{ID: id, Resumed: true})
			if got := next.Received(); got != uint64(want) {
				t.Errorf("got %d received, want %d", got, want)
			}
			if _, err := next.Write([]byte("abcDEFghi")[want:]); err != nil {
				t.Fatal(err)
			}
			var got [20]byte
			if n, err := c.shim.Read(got[:]); err != nil || string(got[:n]) != "abcDEFghi" {
				t.Errorf("the container got %q, %v", got[:n], err)
			}
			if err := next.Close(); err != nil || len(c.vault.files) > 0 {
				t.Errorf("after the close: %v, kept %v", err, c.vault.files)
			}
		})
	}
}

// What waits for the container to read outlives the one who sent it, and a close ends the wait.
func TestInlet_WhatWaitsIsKept(t *testing.T) {
	c := newContainer(t)
	s := c.life()
	i := c.open(t, s, Input{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	var wrote sync.WaitGroup
	wrote.Go(func() {
		if _, err := i.Write(sent); err == nil {
			t.Error("a write to one who does not read ended well")
		}
	})
	var err error
	for full := 0; full < 64<<10; { // the container's pipe
		if full, err = unix.IoctlGetInt(int(c.shim.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	wrote.Wait()
	next := c.open(t, s, Input{ID: "01BX5ZZKBKACTAV9WEVGEMMVRY"}) // of somebody else
	if next.Received() != 0 {
		t.Errorf("got %d received of a new input", next.Received())
	}
	before := i.Received()
	var got bytes.Buffer
	wrote.Go(func() {
		if _, err := next.Write([]byte("end")); err != nil {
			t.Error(err)
		}
	})
	buf := make([]byte, 32<<10)
	for !bytes.HasSuffix(got.Bytes(), []byte("end")) {
		n, err := c.shim.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(buf[:n])
	}
	wrote.Wait()
	if want := string(sent[:before]) + "end"; got.String() != want {
		t.Errorf("the container got %d bytes, want the %d that were taken and the end", got.Len(), len(want))
	}
	if _, err := s.Open(t.Context(), c.Place, Input{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Resumed: true}); fault.Reason(err) != "INPUT_LOST" {
		t.Errorf("the first goes on after another: got %v, want INPUT_LOST", err)
	}
}

// An input that was ended stays so; the same caller may ask for it again.
func TestInlet_EndsForGood(t *testing.T) {
	c := newContainer(t)
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	i := c.open(t, c.life(), Input{ID: id})
	_, err := i.Write([]byte("all"))
	if err := errors.Join(err, i.End(), i.End(), i.Close(), i.Close()); err != nil {
		t.Fatal(err)
	}
	if ended, err := Ended(c.Place); !ended || err != nil {
		t.Errorf("got %t, %v, want it ended", ended, err)
	}
	s := c.life()
	if _, err := s.Open(t.Context(), c.Place, Input{ID: "01BX5ZZKBKACTAV9WEVGEMMVRY"}); fault.Reason(err) != "STDIN_ENDED" {
		t.Errorf("got %v, want STDIN_ENDED", err)
	}
	again := c.open(t, s, Input{ID: id, Resumed: true})
	if err := again.End(); err != nil || again.Received() != 3 || !again.Ended() {
		t.Errorf("got %v, %d received, ended: %t", err, again.Received(), again.Ended())
	}
	if err := errors.Join(again.Close(), s.Remove(c.Place)); err != nil {
		t.Error(err)
	}
	fresh := c.open(t, s, Input{})
	if fresh.Ended() {
		t.Error("a container that is made anew has no input")
	}
	if err := fresh.Close(); err != nil {
		t.Error(err)
	}
}

// What nobody reads is dropped and counted; and without a keeper nobody guesses.
func TestInlet_WithoutReaderOrKeeper(t *testing.T) {
	c := newContainer(t)
	i := c.open(t, c.life(), Input{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
	if err := c.shim.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := i.Write([]byte("into the void")); n != 13 || err != nil || i.Received() != 13 {
		t.Errorf("got %d, %v, %d received", n, err, i.Received())
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	c = newContainer(t)
	c.vault.absent = true
	i = c.open(t, c.life(), Input{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
	_, err := i.stage.fill([]byte("x"))
	if err := errors.Join(err, i.note(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.life().Open(t.Context(), c.Place, Input{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Resumed: true}); fault.Reason(err) != "INPUT_LOST" {
		t.Errorf("got %v, want INPUT_LOST", err)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(c.Pipe); err != nil {
		t.Fatal(err)
	}
	if _, err := c.life().Open(t.Context(), c.Place, Input{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the container is gone", err)
	}
}
