// Package bind puts folders and files of the node within reach of one container:
// each is mounted at a place of ours, from which the runtime takes it.
//
// The runtime would follow a path anew, by name, some time after it was judged;
// here it is opened once, without leaving the folder that the node allows, and
// what was opened is what is mounted. It must never remove through a mount. In the
// trail it is a part of the step create-container, undone in delete-container.
package bind

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// Mount mounts path, which lies in root by its name, at target, which it makes.
// Symbolic links are followed within root only. What is mounted at target already
// is unmounted first. It returns fault.Denied with the reason HOST_PATH_ESCAPES if
// a link leads out of root, and fault.NotFound with HOST_PATH_MISSING if there is
// nothing.
func Mount(root, path, target string) (err error) {
	source, err := open(root, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if err := Unmount(target); err != nil {
		return err
	}
	if err := place(source, target); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	tree, err := unix.OpenTree(int(source.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("mount %s: copy its mounts: %w", path, err)
	}
	moveErr := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err := errors.Join(moveErr, unix.Close(tree)); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	// What the node mounts and unmounts later is its own affair.
	if err := unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: keep its mounts apart: %w", path, err)
	}
	return nil
}

// open opens what is at path without leaving root.
func open(root, path string) (*os.File, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, fault.New(fault.Invalid, "open %s: it is not in %s", path, root)
	}
	missing := func(what string) error {
		return fault.WithReason(fault.New(fault.NotFound, "open %s: there is no %s on this node; make it first", path, what), "HOST_PATH_MISSING")
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, missing(root)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	if rel == "." { // itself, which may be a file
		return os.NewFile(uintptr(dir), path), nil
	}
	fd, err := unix.Openat2(dir, rel, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	closeErr := unix.Close(dir)
	switch {
	case errors.Is(err, unix.EXDEV):
		err = fault.WithReason(fault.New(fault.Denied,
			"open %s: a symbolic link on the way leads out of %s, which is all that this node allows", path, root), "HOST_PATH_ESCAPES")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		err = missing(path)
	case err != nil:
		err = fault.New(fault.Unavailable, "open %s: %w", path, err)
	}
	if err != nil {
		return nil, errors.Join(err, closeErr)
	}
	return os.NewFile(uintptr(fd), path), closeErr
}

// place makes what source can be mounted on: a folder for a folder, else a file.
func place(source *os.File, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.Mkdir(target, 0o700)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Unmount unmounts what is mounted at target, with all below it, and removes the
// place. One that is not there is success.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing (more) is mounted there
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	// Remove, not RemoveAll: should it be a mount after all, its content stays.
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove place of mount: %w", err)
	}
	return nil
}

// Clear unmounts everything below dir, and removes dir with what is left in it,
// which is never what was mounted. Safe to repeat.
func Clear(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	left, err := below(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fault.New(fault.Unavailable, "clear %s: %s is still mounted", dir, left[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	return nil
}

func unmountBelow(dir string) error {
	mounts, err := below(dir)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return nil
}

// below lists the mounts below a folder, outer ones first.
func below(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, filepath.Clean(dir)+"/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	var paths []string
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, nil
}
