package namespace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// flags of unshare by kind.
var flags = map[Kind]int{Net: unix.CLONE_NEWNET, IPC: unix.CLONE_NEWIPC, UTS: unix.CLONE_NEWUTS}

// pin makes new namespaces on a thread that ends with them, and mounts each on
// its path. Those that a user namespace owns are made by a process that is in it.
func (p *Pins) pin(uid id.Sandbox, w Wanted) error {
	if w.Users != nil {
		return p.pinOwned(uid, w)
	}
	return onOwnThread(func() error {
		if err := unix.Unshare(int(allFlags(w))); err != nil {
			return fmt.Errorf("make namespaces: %w", err)
		}
		return p.finish(uid, w, "/proc/thread-self/ns/")
	})
}

// finish sets up the namespaces that this thread is in, and pins those in a folder of
// /proc.
func (p *Pins) finish(uid id.Sandbox, w Wanted, folder string) error {
	if err := unix.Sethostname([]byte(w.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if w.Network {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	for _, k := range w.kinds() {
		if err := mountOn(p.Path(uid, k), folder+string(k)); err != nil {
			return err
		}
	}
	return nil
}

// allFlags are those of the wanted namespaces but the user's.
func allFlags(w Wanted) uintptr {
	all := 0
	for _, k := range w.kinds() {
		all |= flags[k]
	}
	return uintptr(all)
}

// onOwnThread runs fn on a thread that ends with it, because fn leaves it in
// other namespaces.
//
// A goroutine may find itself on the main thread, which Go cannot end: it would
// be parked inside the namespaces, and /proc/<pid>/ns would be wrong from then
// on. So the one that does keeps the main thread busy while another, which then
// cannot be on it, does the work.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() { // owned by this call, which waits for it
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onOwnThread(fn)
			runtime.UnlockOSThread()
			return
		}
		done <- fn() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

// Inside runs fn on a thread of its own in the network namespace at path.
func Inside(path string, fn func() error) error {
	return onOwnThread(func() error {
		f, err := openPin(path)
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return fn()
	})
}

// openPin opens a pinned namespace and makes sure that it is one. It returns
// fault.NotFound if none is pinned there.
func openPin(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "open namespace %s: not pinned", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("open namespace %s: %w", path, err), f.Close())
	}
	if st.Type != unix.NSFS_MAGIC {
		return nil, errors.Join(fault.New(fault.NotFound, "open namespace %s: nothing is pinned on the file", path), f.Close())
	}
	return f, nil
}

// OpenNet opens the pinned network namespace of a sandbox. The caller closes it.
// It returns fault.NotFound if there is none.
func (p *Pins) OpenNet(uid id.Sandbox) (*os.File, error) { return openPin(p.Path(uid, Net)) }

// mountOn pins a namespace file on a new empty file. A file that is there
// already belongs to somebody who makes the same pin now.
func mountOn(path, namespace string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make pin: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("make pin %s: %w", path, err)
	}
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount pin %s: %w", path, err)
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}
