package machine

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"staddle.internal/kit/config"
	"staddle.internal/kit/wholefile"
)

// firstUser begins the range of numeric users of an installation's processes.
const firstUser = 64100

// Install copies the binaries that differ, each atomically. Without a root the
// command becomes one that a shell finds.
func (m *Machine) Install() error {
	if err := os.MkdirAll(m.Bin(), 0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	names, err := m.Differing()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := copyProgram(filepath.Join(m.Source, name), m.binary(name)); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	if m.Paths.Root == "" {
		return link(systemCommand, m.binary("staddle"))
	}
	return nil
}

// Differing lists the binaries that are not installed as they are in Source.
func (m *Machine) Differing() (names []string, err error) {
	for _, name := range binaries {
		same, err := sameContent(filepath.Join(m.Source, name), m.binary(name))
		if err != nil {
			return nil, fmt.Errorf("install %s: %w", name, err)
		}
		if !same {
			names = append(names, name)
		}
	}
	return names, nil
}

// link makes a command of the program, unless something else has that name.
func link(at, program string) error {
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		err = os.Symlink(program, at)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("install command: %w", err)
	}
	return nil
}

// linked reports whether the command is a link to the program.
func linked(at, program string) bool {
	to, err := os.Readlink(at)
	return err == nil && to == program
}

func sameContent(a, b string) (bool, error) {
	infoA, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	infoB, err := os.Stat(b)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if os.SameFile(infoA, infoB) {
		return true, nil
	}
	if infoA.Size() != infoB.Size() {
		return false, nil
	}
	sumA, errA := sum(a)
	sumB, errB := sum(b)
	return bytes.Equal(sumA, sumB), errors.Join(errA, errB)
}

func sum(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), errors.Join(err, f.Close())
}

// copyProgram puts a program in place by rename: one that runs keeps its old
// file, and no half one is ever started.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	return wholefile.Replace(to, 0o755, func(out *os.File) error {
		_, err := io.Copy(out, in)
		return err
	})
}

// Configure writes the configuration files that are absent, and lets the
// binaries check both. What is there is never overwritten.
func (m *Machine) Configure() (written []string, err error) {
	if err := os.MkdirAll(m.Paths.Etc(), 0o755); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	for path, text := range map[string]string{m.Paths.NodeFile(): nodeYAML(), m.Paths.CoordinatorFile(): coordinatorYAML()} {
		if _, err := os.Lstat(path); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return written, fmt.Errorf("configure: %w", err)
		}
		if err := wholefile.Replace(path, 0o644, func(f *os.File) error {
			_, err := f.WriteString(text)
			return err
		}); err != nil {
			return written, err
		}
		written = append(written, path)
	}
	return written, errors.Join(
		m.check(m.Paths.NodeFile(), "staddle-node", supervisorName, "--check-config"),
		m.check(m.Paths.CoordinatorFile(), "staddle-coordinator", "--check-config"))
}

// check lets the program that reads a file say what is wrong with it.
func (m *Machine) check(file, name string, args ...string) error {
	out, err := m.command(name, args...).CombinedOutput()
	if err != nil {
		return &config.Error{File: file, Problems: []config.Problem{{
			Text: fmt.Sprintf("%s does not accept it: %s", name, bytes.TrimSpace(out)),
		}}}
	}
	return nil
}

func nodeYAML() string {
	return fmt.Sprintf(`# The node of this machine. Every key that is not here has its default.
version: 1
name: %s
users:
  # Each process runs as a user of its own; this is the first of their numbers.
  first_id: %d
supervisor:
  # A node together with its own coordinator.
  composition: %s
`, config.DefaultNode().Name, firstUser, config.CompositionMachine)
}

func coordinatorYAML() string {
	owner, _ := config.Users{FirstID: firstUser}.ID("clusteraccess")
	return fmt.Sprintf(`# The coordinator of this machine. Every key that is not here has its default.
version: 1
bootstrap:
  # The process that uses the node's key.
  node_key_owner: %d
`, owner)
}
