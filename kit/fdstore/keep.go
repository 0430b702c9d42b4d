package fdstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// Open returns copies of what owner left, oldest first and each called by its
// name, for the extra files of its next process. The caller closes them.
func (m *Manager) Open(owner string) ([]*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []*os.File
	for _, s := range m.stored[owner] {
		fd, err := unix.FcntlInt(uintptr(s.FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				err = errors.Join(err, f.Close())
			}
			return nil, fmt.Errorf("copy stored file %s of %s: %w", s.Name, owner, err)
		}
		files = append(files, os.NewFile(uintptr(fd), s.Name))
	}
	return files, nil
}

// All lists what everybody left, by owner, oldest first. The numbers are safe to
// use only once Run has returned, or after Freeze.
func (m *Manager) All() []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Stored
	for _, owner := range slices.Sorted(maps.Keys(m.stored)) {
		all = append(all, m.stored[owner]...)
	}
	return all
}

// Put keeps a file for owner as if its process had sent it. The Manager owns fd
// from here on, also when it refuses: fault.Invalid for a wrong name,
// fault.Exhausted if the owner has too many, fault.Unavailable after Close.
func (m *Manager) Put(owner, name string, fd int) error {
	old, err := m.put(Stored{owner, name, fd})
	if err != nil {
		return errors.Join(fmt.Errorf("keep file %s of %s: %w", name, owner, err), unix.Close(fd))
	}
	if old >= 0 {
		return unix.Close(old)
	}
	return nil
}

// put returns the file whose place the new one took, or -1.
func (m *Manager) put(s Stored) (int, error) {
	if err := CheckName(s.Name); err != nil {
		return -1, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return -1, fault.New(fault.Unavailable, "store is closed")
	}
	files := m.stored[s.Owner]
	size := len(s.Name) + 1
	for i, have := range files {
		if have.Name == s.Name {
			files[i] = s
			return have.FD, nil
		}
		size += len(have.Name) + 1
	}
	if len(files) >= m.cfg.MaxFiles || size > maxNames {
		return -1, fault.New(fault.Exhausted, "%d files are kept already", len(files))
	}
	m.stored[s.Owner] = append(files, s)
	return -1, nil
}

// Remove drops the file of that name; a missing one is none to drop.
func (m *Manager) Remove(owner, name string) error {
	return m.drop(owner, func(s Stored) bool { return s.Name == name })
}

// Forget drops all that owner left.
func (m *Manager) Forget(owner string) error {
	return m.drop(owner, func(Stored) bool { return true })
}

// Close drops everything, and refuses all that comes later.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	var errs []error
	for _, s := range m.All() {
		errs = append(errs, m.Remove(s.Owner, s.Name))
	}
	return errors.Join(errs...)
}

func (m *Manager) drop(owner string, which func(Stored) bool) error {
	m.mu.Lock()
	var dropped []Stored
	kept := slices.DeleteFunc(slices.Clone(m.stored[owner]), func(s Stored) bool {
		if which(s) {
			dropped = append(dropped, s)
			return true
		}
		return false
	})
	m.stored[owner] = kept
	if len(kept) == 0 {
		delete(m.stored, owner)
	}
	m.mu.Unlock()
	var errs []error
	for _, s := range dropped {
		errs = append(errs, unix.Close(s.FD))
	}
	return errors.Join(errs...)
}
