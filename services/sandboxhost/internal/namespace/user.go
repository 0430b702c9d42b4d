package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// ids is where the first id of a user namespace is noted beside its pin: the kernel
// tells it only to those who are in it.
func (p *Pins) ids(uid id.Sandbox) string { return filepath.Join(p.Dir(uid), "ids") }

// pinOwned makes a user namespace, in it the others, which it owns, and pins all. A
// process of many threads cannot enter a new user namespace, so another is in it for
// as long as this takes: it is stopped before its program begins, and ends with the
// thread that started it.
//
// The user namespace is owned by root of the node, as whom the runtime works. So it may
// do there what it has to, also where the node's root itself lacks capabilities.
func (p *Pins) pinOwned(uid id.Sandbox, w Wanted) error {
	if err := os.WriteFile(p.ids(uid), strconv.AppendUint(nil, uint64(w.Users.First), 10), 0o600); err != nil {
		return fmt.Errorf("note ids: %w", err)
	}
	return onOwnThread(func() error {
		// Of this thread alone, which ends with it; all that it may do stays allowed.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
			return fmt.Errorf("become root for a new user namespace: %w", errno)
		}
		inside, err := startInside(w)
		if err != nil {
			return fault.New(fault.Unavailable, "make user namespace: %w", err)
		}
		err = p.finishOwned(uid, w, filepath.Join("/proc", strconv.Itoa(inside.Pid), "ns")+"/")
		killErr := inside.Kill()
		_, waitErr := inside.Wait()
		return errors.Join(err, killErr, waitErr)
	})
}

// startInside starts a process in new namespaces.
func startInside(w Wanted) (*os.Process, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(w.Users.First), Size: int(w.Users.Count)}}
	return os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Unshareflags: allFlags(w),
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
}

// finishOwned enters the namespaces in a folder of /proc, sets them up and pins them.
func (p *Pins) finishOwned(uid id.Sandbox, w Wanted, folder string) error {
	for k, flag := range flags {
		if !w.has(k) {
			continue
		}
		if err := enter(folder+string(k), flag); err != nil {
			return err
		}
	}
	return p.finish(uid, w, folder)
}

// enter takes this thread into a namespace.
func enter(path string, flag int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	if err := errors.Join(unix.Setns(fd, flag), unix.Close(fd)); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// FirstUser is the first id on the node of the user namespace of a sandbox; false if it
// has none. It is 0 if there is one and the note beside it makes no sense or is gone: then
// the namespace is nobody's any more, and is made anew when its sandbox begins again.
func (p *Pins) FirstUser(uid id.Sandbox) (first uint32, ok bool, err error) {
	pinned, err := isPin(p.Path(uid, User))
	if err != nil || !pinned {
		return 0, false, err
	}
	raw, err := os.ReadFile(p.ids(uid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, false, fmt.Errorf("read ids of sandbox %s: %w", uid, err)
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
	if err != nil {
		return 0, true, nil //nolint:nilerr // it says nothing, which is the answer
	}
	return uint32(number), true, nil
}

// Users are the first ids on the node of all user namespaces that are pinned and of which
// they are known, by sandbox.
func (p *Pins) Users() (map[id.Sandbox]uint32, error) {
	uids, err := p.Sandboxes()
	if err != nil {
		return nil, err
	}
	all := map[id.Sandbox]uint32{}
	for _, uid := range uids {
		first, ok, err := p.FirstUser(uid)
		if err != nil {
			return nil, fmt.Errorf("look for user namespace of sandbox %s: %w", uid, err)
		}
		if ok && first != 0 {
			all[uid] = first
		}
	}
	return all, nil
}
