package target

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"go.yaml.in/yaml/v3"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/wholefile"

	"staddle.internal/cli/internal/exit"
)

// contextVersion is the only format of the context file.
const contextVersion = 1

// Context is the file ~/.config/staddle/config.yaml: the installation that a
// person works with, and the identity to do it with.
type Context struct {
	// Version of the format; must be 1.
	Version int `yaml:"version"`
	// Root of the installation on this machine. Empty means the system's places.
	Root string `yaml:"root"`
	// Coordinator is host:port.
	Coordinator string `yaml:"coordinator"`
	// CA, Certificate and Key are PEM files.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`

	file string // that it was read from
}

// Validate checks what the types cannot say.
func (c *Context) Validate() []config.Problem {
	if c.Version != contextVersion {
		return []config.Problem{{Key: "version", Text: fmt.Sprintf("version %d is not known", c.Version), Remedy: "write 1"}}
	}
	return nil
}

// ReadContext reads the context file of the person who calls. It returns
// fault.NotFound if there is none.
func ReadContext() (*Context, error) {
	home := Caller()
	if home == nil {
		return nil, fault.New(fault.NotFound, "read context: there is no home for one")
	}
	return home.Read()
}

// Read reads the context file of h.
func (h Home) Read() (*Context, error) {
	there, err := exists(h.file())
	if err != nil {
		return nil, fmt.Errorf("read context: %w", err)
	}
	if !there {
		return nil, fault.New(fault.NotFound, "read context: %s does not exist", h.file())
	}
	data, err := config.ReadFile(h.file())
	if err != nil {
		return nil, err
	}
	c := Context{Version: contextVersion, file: h.file()}
	if err := config.Decode(h.file(), data, &c); err != nil {
		return nil, exit.Try(err, "correct the file, or remove it: staddle up writes it anew")
	}
	return &c, nil
}

// Save copies the identity of c beside the context file and writes the file,
// each atomically, owned by the person and readable by nobody else. Files that
// already have that content stay as they are.
func (h Home) Save(c Context) error {
	if err := h.makeFolder(); err != nil {
		return err
	}
	for _, f := range []struct {
		from *string
		name string
	}{{&c.CA, "ca.crt"}, {&c.Certificate, "operator.crt"}, {&c.Key, "operator.key"}} {
		data, err := os.ReadFile(*f.from)
		if err != nil {
			return fmt.Errorf("copy identity: %w", err)
		}
		*f.from = filepath.Join(h.folder(), f.name)
		if err := h.write(*f.from, data); err != nil {
			return fmt.Errorf("copy identity: %w", err)
		}
	}
	c.Version = contextVersion
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("write context: %w", err)
	}
	return h.write(h.file(), text)
}

// Forget removes the context, if it is about the installation below root, with its
// folder if nothing else is in it.
func (h Home) Forget(root string) error {
	c, err := h.Read()
	if fault.KindOf(err) == fault.NotFound || err == nil && c.Root != root {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"config.yaml", "ca.crt", "operator.crt", "operator.key"} {
		if err := os.Remove(filepath.Join(h.folder(), name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove context: %w", err)
		}
	}
	if err := os.Remove(h.folder()); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return fmt.Errorf("remove context: %w", err)
	}
	return nil
}

func (h Home) makeFolder() error {
	for _, dir := range []string{h.Dir, h.folder()} {
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = h.own(dir)
		}
		if err != nil {
			return fmt.Errorf("write context: %w", err)
		}
	}
	return nil
}

func (h Home) own(path string) error {
	if h.UID < 0 {
		return nil
	}
	return os.Lchown(path, h.UID, h.GID)
}

func (h Home) write(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return wholefile.Replace(path, 0o600, func(f *os.File) error {
		if err := h.own(f.Name()); err != nil {
			return err
		}
		_, err := f.Write(data)
		return err
	})
}
