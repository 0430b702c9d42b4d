// Package secret owns the values of secrets on the node: where they are kept in
// memory for each sandbox, and how they are asked for.
//
// Values live in a tmpfs of the sandbox's own, from when they were asked for until the
// sandbox is removed: they outlive our processes and need no network for another
// attempt, and never touch a disk. They must never be logged, nor be part of an
// error. In the trail the keeper has them fetched before an attempt begins, and the
// engine reads them when it makes a container.
package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/namespace"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// tmpfsSize bounds the values of one sandbox with what its containers see of them.
const tmpfsSize = "128m"

// Names in the folder of a sandbox.
const (
	valuesDir     = "values"     // a file per secret
	containersDir = "containers" // what containers see, by their ids
	markFile      = "for"        // what the values were fetched for
	freshFile     = "fresh"      // is there while nobody needs to ask for newer ones
)

// Files are the values of all sandboxes of one node.
type Files struct{ dir string }

// NewFiles returns the files below dir, which holds one folder per sandbox. It opens
// nothing.
func NewFiles(dir string) *Files { return &Files{dir: dir} }

func (f *Files) of(uid id.Sandbox, parts ...string) string {
	return filepath.Join(append([]string{f.dir, uid.Lower()}, parts...)...)
}

// Container is the folder of what one container sees.
func (f *Files) Container(uid id.Sandbox, containerID string) string {
	return f.of(uid, containersDir, containerID)
}

// Sandboxes lists the sandboxes that have values.
func (f *Files) Sandboxes() ([]id.Sandbox, error) { return namespace.List(f.dir) }

// Kept says whether a sandbox has a folder of values.
func (f *Files) Kept(uid id.Sandbox) (bool, error) {
	_, err := os.Lstat(f.of(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for secrets of sandbox %s: %w", uid, err)
	}
	return true, nil
}

// Has says whether the values that a spec refers to are there, and whether they are
// fresh. A spec that refers to none has all.
func (f *Files) Has(uid id.Sandbox, refs References) (there, fresh bool) {
	if len(refs) == 0 {
		return true, true
	}
	mark, err := os.ReadFile(f.of(uid, markFile))
	if err != nil || string(mark) != refs.mark() {
		return false, false
	}
	_, err = os.Lstat(f.of(uid, freshFile))
	return true, err == nil
}

// Keep writes what was fetched for a spec, in place of what was there.
func (f *Files) Keep(uid id.Sandbox, refs References, all []*resourcev1.SecretData) error {
	if err := f.keep(uid, refs, all); err != nil {
		return fmt.Errorf("keep secrets of sandbox %s: %w", uid, err)
	}
	return nil
}

// keep takes the mark away before the old values and writes it last: what a death
// leaves in between counts as nothing.
func (f *Files) keep(uid id.Sandbox, refs References, all []*resourcev1.SecretData) error {
	if err := f.mount(uid); err != nil {
		return err
	}
	next := f.of(uid, valuesDir+".new")
	if err := writeValues(next, all); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	for _, name := range []string{freshFile, markFile, valuesDir} {
		if err := os.RemoveAll(f.of(uid, name)); err != nil {
			return err
		}
	}
	if err := os.Rename(next, f.of(uid, valuesDir)); err != nil {
		return err
	}
	if err := os.WriteFile(f.of(uid, markFile), []byte(refs.mark()), 0o600); err != nil {
		return err
	}
	return f.refresh(uid)
}

// writeValues writes a folder with a file per secret.
func writeValues(dir string, all []*resourcev1.SecretData) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, data := range all {
		raw, err := proto.Marshal(data)
		if err != nil {
			return fault.New(fault.Internal, "encode secret %s", data.GetName())
		}
		if err := os.WriteFile(filepath.Join(dir, data.GetName()), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// refresh makes values count as fresh.
func (f *Files) refresh(uid id.Sandbox) error { return os.WriteFile(f.of(uid, freshFile), nil, 0o600) }

// Age makes values count as not fresh: the next attempt asks for newer ones first, and
// goes on with these if it cannot have them.
func (f *Files) Age(uid id.Sandbox) error {
	if err := os.Remove(f.of(uid, freshFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("age secrets of sandbox %s: %w", uid, err)
	}
	return nil
}

// Read returns one secret. Unavailable means that it was not fetched.
func (f *Files) Read(uid id.Sandbox, name string) (*resourcev1.SecretData, error) {
	raw, err := os.ReadFile(f.of(uid, valuesDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithReason(fault.New(fault.Unavailable, "read secret %s of sandbox %s: it is not fetched yet", name, uid), "WAITING_FOR_SECRETS")
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "read secret %s of sandbox %s: %w", name, uid, err)
	}
	data := &resourcev1.SecretData{}
	if err := proto.Unmarshal(raw, data); err != nil {
		return nil, fault.New(fault.Internal, "read secret %s of sandbox %s: it is damaged", name, uid)
	}
	return data, nil
}

// RemoveContainer removes what one container saw.
func (f *Files) RemoveContainer(uid id.Sandbox, containerID string) error {
	return os.RemoveAll(f.Container(uid, containerID))
}

// Remove removes all values of a sandbox. Safe to repeat.
func (f *Files) Remove(uid id.Sandbox) error {
	path := f.of(uid)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing (more) is mounted there
		}
		if err != nil {
			return fmt.Errorf("remove secrets of sandbox %s: %w", uid, err)
		}
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove secrets of sandbox %s: %w", uid, err)
	}
	return nil
}

// mount makes the folder of a sandbox and sees to it that it is memory.
func (f *Files) mount(uid id.Sandbox) error {
	path := f.of(uid)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	var here, above unix.Stat_t
	if err := errors.Join(unix.Lstat(path, &here), unix.Lstat(f.dir, &above)); err != nil {
		return err
	}
	if here.Dev != above.Dev {
		return nil // it is mounted
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	options := "mode=0700,size=" + tmpfsSize
	err := unix.Mount("secrets", path, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.4
		err = unix.Mount("secrets", path, "tmpfs", flags, options)
	}
	if err != nil {
		return fmt.Errorf("mount memory for them: %w", err)
	}
	return nil
}
