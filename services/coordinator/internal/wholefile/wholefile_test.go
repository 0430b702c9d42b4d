package wholefile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"staddle.internal/services/coordinator/internal/wholefile"
)

func TestReplace_AllOrNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		}
	}
	broken := errors.New("broken off")
	if err := wholefile.Replace(file, 0o600, 0, text("old")); err != nil {
		t.Fatal(err)
	}
	err := wholefile.Replace(file, 0o600, 0, func(w io.Writer) error { return errors.Join(text("half")(w), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "old" {
		t.Errorf("after a failure it holds %q (%v), want old", raw, err)
	}
	if err := wholefile.Replace(file, 0o640, 0, text("new")); err != nil {
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
