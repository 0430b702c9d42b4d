package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// Names in the folder of volumes. No uid begins with a dot.
const (
	noteFile   = "volume.json"
	dataFolder = "data"
	parkedFile = "parked" // there: it is unmounted, and stays its holder's
	making     = ".making-"
	removing   = ".removing-"
	noteFormat = 1
	maxNote    = 4 << 10
)

// note is what is kept about one volume beside its data.
type note struct {
	Format    int       `json:"format"`
	UID       string    `json:"uid"`
	Holder    string    `json:"holder,omitempty"`
	Epoch     uint64    `json:"epoch"`
	CreatedAt time.Time `json:"created_at"`
}

// readNote reads the note in a volume's folder, strictly.
func readNote(folder string) (note, error) {
	raw, err := os.ReadFile(filepath.Join(folder, noteFile))
	if err != nil {
		return note{}, err
	}
	if len(raw) > maxNote {
		return note{}, fmt.Errorf("%s has %d bytes, more than %d", noteFile, len(raw), maxNote)
	}
	var n note
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return note{}, fmt.Errorf("%s cannot be read: %w", noteFile, err)
	}
	if n.Format != noteFormat {
		return note{}, fmt.Errorf("%s has format %d, this version reads %d", noteFile, n.Format, noteFormat)
	}
	return n, nil
}

// writeNote replaces the note: after a crash at any moment there is the old or
// the new one, whole.
func writeNote(folder string, n note) error {
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	tmp := filepath.Join(folder, noteFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return renameDurably(tmp, filepath.Join(folder, noteFile))
}

// renameDurably renames within one filesystem and makes that durable.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// makeData makes the folder of a volume's data. Only its holder ever sees it, so
// any user inside may write.
func makeData(path string) error {
	return errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777))
}

// syncFolder makes all that was written to the filesystem of a folder durable.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// finishRemovals ends what a crash cut off: half-made and half-removed volumes.
func (s *Store) finishRemovals() error {
	entries, err := os.ReadDir(s.data)
	if err != nil {
		return fmt.Errorf("recover volumes: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), making) || strings.HasPrefix(e.Name(), removing) {
			if err := s.removeTree(filepath.Join(s.data, e.Name())); err != nil {
				return fmt.Errorf("recover volumes: %w", err)
			}
		}
	}
	return nil
}

// removeTree removes a folder, but never anything through a mount.
func (s *Store) removeTree(path string) error {
	mounted, err := s.mounts.Below(path)
	if err != nil {
		return err
	}
	if len(mounted) > 0 {
		return fault.New(fault.Unavailable, "remove %s: something is mounted at %s", path, mounted[0])
	}
	return os.RemoveAll(path)
}

// unanswered tells a question that the kernel could not answer, for want of file
// descriptors or memory, from one that shows what is wrong with a volume.
func unanswered(err error) bool {
	_, asked := errors.AsType[*fs.PathError](err)
	return asked && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EUCLEAN) &&
		!errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOTDIR)
}

// classify gives an error of the filesystem the kind that a caller acts on.
func classify(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.New(fault.Exhausted, "%w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EIO):
		return fault.New(fault.Unavailable, "%w", err)
	}
	return err
}
