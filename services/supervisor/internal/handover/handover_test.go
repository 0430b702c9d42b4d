package handover

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/machine"
)

// inherit leaves a file to Inherited, as a re-exec does.
func inherit(t *testing.T, f *os.File) {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvFD, strconv.Itoa(fd))
}

func TestState_IsReadAsItWasWritten(t *testing.T) {
	want := State{
		Table: machine.Plan{Components: []machine.Component{{Name: "a"}}}.Start(time.Now()).Record(time.Now()),
		Children: child.Handover{
			Children: map[string]child.ChildHandover{"a": {PID: 12, Leash: 13, Socket: 14, TCP: 15, Address: "127.0.0.1:1", Ended: &child.Exit{Name: "a", PID: 11, How: "exit code 3"}}},
			Owners:   map[int]string{12: "a"}, Notify: 16,
		},
		Lock: 17, Socket: 18,
	}
	f, err := Write(want)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the file can be written to, want it sealed")
	}
	inherit(t, f)
	got, err := Inherited()
	if err != nil {
		t.Fatal(err)
	}
	if _, still := os.LookupEnv(EnvFD); still {
		t.Error("the variable is still there, and every child would find it")
	}
	want.Version, want.At = got.Version, got.At
	if got.Version != Version || got.At == 0 || !reflect.DeepEqual(got.Children, want.Children) || got.Lock != 17 || got.Socket != 18 {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if age := time.Since(got.Then()); age < 0 || age > time.Minute {
		t.Errorf("got %s ago, want a moment", age)
	}
	if got, err := Inherited(); got != nil || err != nil {
		t.Errorf("got %v, %v at the second call, want nothing", got, err)
	}
}

func TestInherited_RefusesWhatItDoesNotKnow(t *testing.T) {
	for name, bad := range map[string]struct{ text, says string }{
		"a later version":  {`{"version": 3, "children": {}}`, "version 3"},
		"no version":       {`{}`, "version 0"},
		"an unknown field": {`{"version": 1, "later": true}`, "later"},
		"half of it":       {`{"version": 1, "lock": `, "unexpected end"},
		"nothing":          {"", "unexpected end"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decode([]byte(bad.text)); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("got %v, want Invalid with %q", err, bad.says)
			}
		})
	}
	if got, err := decode([]byte(`{"version": 1, "lock": 7}`)); err != nil || got.Lock != 7 || got.Program != 1 || got.Trial {
		t.Errorf("got %+v, %v of the version before, want the first program handed over", got, err)
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inherit(t, f)
	if _, err := Inherited(); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v of a file that is not sealed, want Invalid", err)
	}
	for _, text := range []string{"", "x", "2", "-1"} {
		t.Setenv(EnvFD, text)
		if _, err := Inherited(); !errors.Is(err, fault.Invalid) {
			t.Errorf("got %v of %q, want Invalid", err, text)
		}
	}
}

// A rehearsal has the same shape, and none of the files.
func TestRehearsal_HasStandInsOnly(t *testing.T) {
	real := State{
		Children: child.Handover{
			Children: map[string]child.ChildHandover{
				"a": {PID: 12, Leash: 1013, Socket: 1014, TCP: 1015, Address: "127.0.0.1:1"}, "b": {PID: 0, Socket: 1016},
			},
			Owners: map[int]string{12: "a"}, Notify: 1017, Stored: []fdstore.Stored{{Owner: "a", Name: "log", FD: 1018}},
		},
		Lock: 1019, Socket: 1020, Program: 4,
	}
	const first = 5
	got, files, err := real.Rehearsal(first)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := child.CloseAll(files); err != nil {
			t.Error(err)
		}
	}()
	var used []int
	for _, fd := range got.FDs() {
		if fd != 0 {
			used = append(used, fd)
		}
	}
	slices.Sort(used)
	if want := []int{5, 6, 7, 8, 9, 10}; !slices.Equal(used, want) || len(files) != len(want) {
		t.Errorf("got files %v and %d of them, want %v", used, len(files), want)
	}
	if !got.Trial || got.Lock != 0 || got.Socket != 0 || got.Program != 4 || got.Children.Children["a"].PID != 12 || got.Children.Children["b"].TCP != 0 {
		t.Errorf("got %+v", got)
	}
	for fd, option := range map[int]int{got.Children.Children["a"].Socket: 1, got.Children.Children["a"].TCP: 1, got.Children.Notify: 0} {
		if listens, err := unix.GetsockoptInt(int(files[fd-first].Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens != option {
			t.Errorf("file %d listens: %d (%v), want %d", fd, listens, err, option)
		}
	}
	if real.Children.Stored[0].FD != 1018 || real.Children.Children["a"].Leash != 1013 {
		t.Errorf("the state itself was changed: %+v", real)
	}
}
