package logs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// Name is what people call a sandbox.
type Name struct {
	// Manager of the sandbox: "cluster" or "local".
	Manager string
	// Name of it.
	Name string
}

// Removed is the output of one removed sandbox.
type Removed struct {
	// UID of the sandbox.
	UID id.Sandbox
	// Name that it had. Zero if nobody knew it.
	Name Name
	// At is when it was removed.
	At time.Time

	dir  string
	size int64
}

// Removed lists the removed sandboxes whose output is kept, in the order in which they
// were removed.
func (s *Store) Removed() ([]Removed, error) {
	all, err := s.allRemoved()
	now := time.Now()
	return slices.DeleteFunc(all, func(r Removed) bool { return now.Sub(r.At) >= s.cfg.KeepRemoved }), err
}

// WasCalled says what a removed sandbox was called.
func (s *Store) WasCalled(uid id.Sandbox) (Name, bool) {
	s.place.RLock()
	defer s.place.RUnlock()
	r, ok := s.removed[uid]
	return r.Name, ok && r.Name != Name{}
}

func (s *Store) isRemoved(uid id.Sandbox) bool {
	s.place.RLock()
	defer s.place.RUnlock()
	_, ok := s.removed[uid]
	return ok
}

// within calls f with the folder that the output of a sandbox is in, and which keeps its
// place meanwhile. f must be short, and must not come back to the store.
func (s *Store) within(uid id.Sandbox, f func(dir string) error) error {
	s.place.RLock()
	defer s.place.RUnlock()
	if r, ok := s.removed[uid]; ok {
		return f(r.dir)
	}
	return f(s.Dir(uid))
}

// allRemoved lists also those whose time is over.
func (s *Store) allRemoved() ([]Removed, error) {
	s.place.Lock()
	defer s.place.Unlock()
	if err := s.findRemovedLocked(); err != nil {
		return nil, err
	}
	all := make([]Removed, 0, len(s.removed))
	for _, r := range s.removed {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Removed) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.UID, b.UID)) })
	return all, nil
}

// findRemovedLocked looks, once, for what is kept of removed sandboxes.
func (s *Store) findRemovedLocked() error {
	if s.removed != nil {
		return nil
	}
	entries, err := os.ReadDir(s.cfg.Removed)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for output of removed sandboxes: %w", err)
	}
	found := map[id.Sandbox]Removed{}
	for _, e := range entries {
		uid, name, ok := parseAside(e.Name())
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("look for output of removed sandboxes: %w", err)
		}
		if !ok || !e.IsDir() {
			continue // none of ours
		}
		dir := filepath.Join(s.cfg.Removed, e.Name())
		found[uid] = Removed{UID: uid, Name: name, At: info.ModTime(), dir: dir, size: sizeOf(dir)}
	}
	s.removed = found
	return nil
}

// asideName is the folder that the output of a removed sandbox gets: all that is known
// of it, so that nothing has to be written for it.
func asideName(uid id.Sandbox, name Name) string {
	return name.Manager + "_" + name.Name + "_" + uid.Lower()
}

// parseAside undoes asideName.
func parseAside(folder string) (id.Sandbox, Name, bool) {
	parts := strings.Split(folder, "_")
	if len(parts) != 3 {
		return "", Name{}, false
	}
	uid, err := id.ParseSandbox(strings.ToUpper(parts[2]))
	return uid, Name{Manager: parts[0], Name: parts[1]}, err == nil && parts[2] == uid.Lower()
}

// putAside moves the output of a sandbox away from that of those that are here. The
// time of the folder is then that of the removal.
func (s *Store) putAside(uid id.Sandbox, name Name) error {
	for {
		err := s.moveAside(uid, name)
		if !isFull(err) {
			return err
		}
		if !s.GiveUp() { // not even a name has room: nothing but this can make some
			s.tell(func(w Watcher) { w.RemovingAll(uid) })
			s.log.Warn("output of a removed sandbox not kept", uid.Attr(), logging.Err(err))
			return os.RemoveAll(s.Dir(uid))
		}
	}
}

func (s *Store) moveAside(uid id.Sandbox, name Name) error {
	s.place.Lock()
	defer s.place.Unlock()
	if err := s.findRemovedLocked(); err != nil {
		return err
	}
	from, now := s.Dir(uid), time.Now()
	if _, err := os.Lstat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Removed, 0o700); err != nil {
		return err
	}
	if r, ok := s.removed[uid]; ok { // this was made anew behind its removal
		if err := os.RemoveAll(r.dir); err != nil {
			return err
		}
	}
	to := filepath.Join(s.cfg.Removed, asideName(uid, name))
	if err := errors.Join(os.Chtimes(from, now, now), os.Rename(from, to)); err != nil {
		return err
	}
	s.removed[uid] = Removed{UID: uid, Name: name, At: now, dir: to, size: sizeOf(to)}
	signal(s.nudge)
	return nil
}

// sizeOf is how many bytes the files in a folder have. What goes meanwhile needs no room.
func sizeOf(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // the others are counted
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
