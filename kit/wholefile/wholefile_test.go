package wholefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/kit/wholefile"
)

func TestReplace_AllOrNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	text := func(s string) func(*os.File) error {
		return func(f *os.File) error {
			_, err := f.WriteString(s)
			return err
		}
	}
	broken := errors.New("broken off")
	if err := wholefile.Replace(file, 0o600, text("old")); err != nil {
		t.Fatal(err)
	}
	err := wholefile.Replace(file, 0o600, func(f *os.File) error { return errors.Join(text("half")(f), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "old" {
		t.Errorf("after a failure it holds %q (%v), want old", raw, err)
	}
	if err := wholefile.Replace(file, 0o640, text("new")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v, want mode 0640", info, err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "new" {
		t.Errorf("it holds %q (%v), want new", raw, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v), want the file alone", left, err)
	}
}

// Who may give files to other users, and nothing else, can write one for another: its
// mode is set while it is still their own.
func TestReplace_GivesTheModeBeforeTheFileIsGivenAway(t *testing.T) {
	err := wholefile.Replace(filepath.Join(t.TempDir(), "key"), 0o640, func(f *os.File) error {
		info, err := f.Stat()
		if err == nil && info.Mode().Perm() != 0o640 {
			t.Errorf("it is given away with mode %v, want 0640", info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
