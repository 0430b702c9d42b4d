// Package namespace owns the pinned namespaces of sandboxes: network, IPC, UTS and,
// for those that ask for it, user, each a bind mount of a namespace file that keeps it alive without any
// process, and the shared memory that all containers of a sandbox see.
//
// They are made on a thread of their own that ends with its namespaces, so that
// no other goroutine ever runs inside one. All paths derive from the uid of the
// sandbox. It must never enter a namespace to change it after it was made (the
// address is the network's business), and never trust a file for being there: a
// pin that was unmounted is an empty regular file that opens without error.
//
// In the trail it is what the engine does in the step pin-namespaces, and undoes
// in release-sandbox.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// Kind is a kind of namespace, as its file in /proc is called.
type Kind string

// The kinds that a sandbox has. The pid namespace belongs to each container.
const (
	Net  Kind = "net"
	IPC  Kind = "ipc"
	UTS  Kind = "uts"
	User Kind = "user" // owns the others, if there is one
)

// defaultShm bounds the shared memory of one sandbox.
const defaultShm = 64 << 20

// Pins are the namespaces of all sandboxes of one node.
type Pins struct {
	dir string
}

// Wanted says which namespaces a sandbox has.
type Wanted struct {
	// Network is false with the node's own network.
	Network bool
	// Hostname inside the UTS namespace.
	Hostname string
	// ShmSize is the size of the shared memory in bytes; 0 means 64 MiB.
	ShmSize int64
	// Users, if not nil, are the ids that a user namespace of its own has on the node.
	Users *Users
}

// Users are the ids of a user namespace, of users and of groups alike: 0 and those
// that follow inside are First and those that follow on the node.
type Users struct {
	// First on the node.
	First uint32
	// Count of them.
	Count uint32
}

// has says whether a sandbox has a namespace of that kind.
func (w Wanted) has(k Kind) bool {
	return k != Net && k != User || k == Net && w.Network || k == User && w.Users != nil
}

// kinds are those that a sandbox has; the one that owns the others comes first.
func (w Wanted) kinds() []Kind {
	return slices.DeleteFunc([]Kind{User, Net, IPC, UTS}, func(k Kind) bool { return !w.has(k) })
}

// New returns the pins below dir, which holds one folder per sandbox. It opens
// nothing.
func New(dir string) *Pins { return &Pins{dir: dir} }

// Root holds the folders of all sandboxes.
func (p *Pins) Root() string { return p.dir }

// Dir is the folder of one sandbox, which goes with the boot.
func (p *Pins) Dir(uid id.Sandbox) string { return filepath.Join(p.dir, uid.Lower()) }

// Path is where a namespace of a sandbox is pinned.
func (p *Pins) Path(uid id.Sandbox, k Kind) string {
	return filepath.Join(p.Dir(uid), string(k))
}

// Shm is where the shared memory of a sandbox is mounted.
func (p *Pins) Shm(uid id.Sandbox) string { return filepath.Join(p.Dir(uid), "shm") }

// Open makes the folder of all sandboxes and keeps its mounts to itself, so that
// a copy in another mount namespace cannot hold a namespace alive. Safe to repeat.
func (p *Pins) Open() error {
	if err := os.MkdirAll(p.dir, 0o711); err != nil {
		return fmt.Errorf("make folder of namespaces: %w", err)
	}
	mounted, err := isMount(p.dir)
	if err != nil {
		return fmt.Errorf("open folder of namespaces: %w", err)
	}
	if !mounted {
		if err := unix.Mount(p.dir, p.dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount folder of namespaces %s: %w", p.dir, err)
		}
	}
	if err := unix.Mount("", p.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts of %s private: %w", p.dir, err)
	}
	return nil
}

// Close undoes Open, for a node that is taken down. Pins must be gone.
func (p *Pins) Close() error {
	mounted, err := isMount(p.dir)
	if err != nil || !mounted {
		return ignore(err, os.ErrNotExist)
	}
	if err := unix.Unmount(p.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount folder of namespaces %s: %w", p.dir, err)
	}
	return nil
}

// Ensure makes the namespaces and the shared memory of a sandbox, or leaves them
// if they are whole. What is there in part is made anew. It returns
// fault.Unavailable if this machine cannot make a user namespace now.
func (p *Pins) Ensure(uid id.Sandbox, w Wanted) error {
	whole, err := p.Whole(uid)
	if err != nil {
		return err
	}
	if whole {
		if whole, err = p.same(uid, w); err != nil || whole {
			return err
		}
	}
	if err := p.unpin(uid); err != nil {
		return err
	}
	// Closed to other users of the machine: the shared memory in it lets every user
	// write, as it must for those inside.
	if err := os.MkdirAll(p.Dir(uid), 0o700); err != nil {
		return fmt.Errorf("make folder of sandbox %s: %w", uid, err)
	}
	err = p.pin(uid, w)
	if err == nil {
		err = p.mountShm(uid, w)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pin namespaces of sandbox %s: %w", uid, err), p.unpin(uid))
	}
	return nil
}

// Whole says whether all namespaces that a sandbox was made with are pinned and its
// shared memory is mounted. One without network or user namespace of its own has no
// pin of it, not even an empty one.
func (p *Pins) Whole(uid id.Sandbox) (bool, error) {
	for _, k := range []Kind{User, Net, IPC, UTS} {
		pinned, err := isPin(p.Path(uid, k))
		if err != nil {
			return false, err
		}
		if pinned {
			continue
		}
		if there, err := p.made(uid, k); err != nil || there || k == IPC || k == UTS {
			return false, err
		}
	}
	mounted, err := isMount(p.Shm(uid))
	return mounted, ignore(err, os.ErrNotExist)
}

// made says whether a pin was made for a sandbox, whole or not.
func (p *Pins) made(uid id.Sandbox, k Kind) (bool, error) {
	_, err := os.Lstat(p.Path(uid, k))
	if err != nil {
		return false, ignore(err, os.ErrNotExist)
	}
	return true, nil
}

// same says whether the pins that are there are of the wanted kinds, and the user
// namespace has the wanted ids.
func (p *Pins) same(uid id.Sandbox, w Wanted) (bool, error) {
	for _, k := range []Kind{User, Net} {
		if there, err := p.made(uid, k); err != nil || there != w.has(k) {
			return false, err
		}
	}
	if w.Users == nil {
		return true, nil
	}
	first, _, err := p.FirstUser(uid)
	return first == w.Users.First, err
}

// Release removes all of a sandbox's folder: pins, shared memory, and what else
// was put into it. Safe to repeat.
func (p *Pins) Release(uid id.Sandbox) error {
	if err := p.unpin(uid); err != nil {
		return err
	}
	if err := os.RemoveAll(p.Dir(uid)); err != nil {
		return fmt.Errorf("remove folder of sandbox %s: %w", uid, err)
	}
	return nil
}

// Sandboxes lists the sandboxes that have a folder.
func (p *Pins) Sandboxes() ([]id.Sandbox, error) { return List(p.dir) }

// unpin lets go of namespaces and shared memory.
func (p *Pins) unpin(uid id.Sandbox) error {
	var errs []error
	for _, path := range []string{p.Shm(uid), p.Path(uid, Net), p.Path(uid, IPC), p.Path(uid, UTS), p.Path(uid, User)} {
		errs = append(errs, detach(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unpin namespaces of sandbox %s: %w", uid, err)
	}
	return nil
}

func (p *Pins) mountShm(uid id.Sandbox, w Wanted) error {
	size, root := w.ShmSize, uint32(0)
	if size == 0 {
		size = defaultShm
	}
	if w.Users != nil {
		root = w.Users.First
	}
	path := p.Shm(uid)
	if err := os.Mkdir(path, 0o1777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	options := fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", size, root, root)
	if err := unix.Mount("shm", path, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount shared memory: %w", err)
	}
	return nil
}

// detach unmounts whatever is mounted on path, as often as something is, and
// removes it.
func detach(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing (more) is mounted there
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return ignore(os.Remove(path), os.ErrNotExist)
}

// isPin says whether a namespace is mounted on path.
func isPin(path string) (bool, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at namespace %s: %w", path, err)
	}
	return st.Type == unix.NSFS_MAGIC, nil
}

// isMount says whether path is the root of a mount.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, fault.New(fault.Internal, "look at mount %s: this kernel cannot tell; Linux 5.8 or later is needed", path)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
