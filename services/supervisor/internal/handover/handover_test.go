package handover

import (
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"

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
		"a later version":  {`{"version": 2, "children": {}}`, "version 2"},
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
