package upgrade

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"staddle.internal/kit/fault"
)

// Names in the folder of the installed binaries.
const (
	stageName  = ".next"       // the staged binaries
	provenName = ".next.ready" // says that they are to be installed, whatever happens
)

// maxProgram bounds the size of a binary.
const maxProgram = 1 << 30

// stage is the folder of installed binaries with the staged ones in it.
type stage struct {
	bin      string
	programs []string // names that an installation may have
}

func (s stage) folder() string               { return filepath.Join(s.bin, stageName) }
func (s stage) staged(name string) string    { return filepath.Join(s.folder(), name) }
func (s stage) proven() string               { return filepath.Join(s.bin, provenName) }
func (s stage) place(name string) string     { return filepath.Join(s.bin, name) }
func (s stage) source(from, n string) string { return filepath.Join(from, n) }

// fill copies the binaries of a folder into the stage and returns their names. All
// that is wrong with them is told at once, and then nothing is staged.
func (s stage) fill(from string) (names []string, err error) {
	if !filepath.IsAbs(from) {
		return nil, fault.New(fault.Invalid, "upgrade: folder %q is not absolute", from)
	}
	var wrong []error
	for _, name := range s.programs {
		info, err := os.Stat(s.source(from, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			wrong = append(wrong, err)
		case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
			wrong = append(wrong, fmt.Errorf("%s is no program", s.source(from, name)))
		case info.Size() > maxProgram:
			wrong = append(wrong, fmt.Errorf("%s has %d bytes, at most %d are taken", s.source(from, name), info.Size(), maxProgram))
		default:
			names = append(names, name)
		}
	}
	if len(wrong) == 0 && len(names) == 0 {
		wrong = append(wrong, fmt.Errorf("%s has none of %v", from, s.programs))
	}
	if len(wrong) > 0 {
		return nil, fault.New(fault.Invalid, "upgrade: %w", errors.Join(wrong...))
	}
	return names, s.copy(from, names)
}

func (s stage) copy(from string, names []string) error {
	if err := s.drop(); err != nil {
		return err
	}
	if err := os.Mkdir(s.folder(), 0o755); err != nil {
		return fmt.Errorf("upgrade: stage binaries: %w", err)
	}
	for _, name := range names {
		if err := copyProgram(s.source(from, name), s.staged(name)); err != nil {
			return fmt.Errorf("upgrade: stage %s: %w", name, errors.Join(err, s.drop()))
		}
	}
	return nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, maxProgram))
	return errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close())
}

// install puts the staged binaries in place. A process that runs from one of them
// goes on: the file is the same. The note of what is proven is written first, so
// that an installation that was broken off is finished by resume.
func (s stage) install() error {
	note, err := os.OpenFile(s.proven(), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("upgrade: install: %w", err)
	}
	if err := errors.Join(note.Sync(), note.Close()); err != nil {
		return fmt.Errorf("upgrade: install: %w", err)
	}
	return s.finish()
}

func (s stage) finish() error {
	entries, err := os.ReadDir(s.folder())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("upgrade: install: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains(s.programs, e.Name()) {
			continue
		}
		if err := os.Rename(s.staged(e.Name()), s.place(e.Name())); err != nil {
			return fmt.Errorf("upgrade: install: %w", err)
		}
	}
	if err := os.RemoveAll(s.folder()); err != nil {
		return fmt.Errorf("upgrade: install: %w", err)
	}
	if err := os.Remove(s.proven()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("upgrade: install: %w", err)
	}
	return nil
}

// resume ends what an earlier supervisor left: what was proven is installed, and
// what was not is dropped. It reports whether there was something.
func (s stage) resume() (bool, error) {
	proven, err := exists(s.proven())
	if err != nil {
		return false, err
	}
	if proven {
		return true, s.finish()
	}
	staged, err := exists(s.folder())
	if err != nil || !staged {
		return false, err
	}
	return true, s.drop()
}

func (s stage) drop() error {
	if err := os.RemoveAll(s.folder()); err != nil {
		return fmt.Errorf("upgrade: drop staged binaries: %w", err)
	}
	return nil
}

// exists tells what is not there from what cannot be asked.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
