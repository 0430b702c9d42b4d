package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

// A user namespace has the ids that it was given and owns the namespaces beside it;
// pinned, it lasts without any process, and the kernel knows whose it is.
func TestPins_UserNamespace(t *testing.T) {
	p, uid := newPins(t), id.NewSandbox()
	want := Wanted{Network: true, Hostname: "web", Users: &Users{First: 1879048192, Count: 65536}}
	for range 2 {
		if err := p.Ensure(uid, want); err != nil {
			t.Fatal(err)
		}
	}
	if whole, err := p.Whole(uid); err != nil || !whole {
		t.Errorf("whole %t, %v", whole, err)
	}
	if all, err := p.Users(); err != nil || len(all) != 1 || all[uid] != want.Users.First {
		t.Errorf("got %v, %v", all, err)
	}
	for _, k := range []Kind{Net, IPC, UTS} {
		if got := ownerOf(t, p.Path(uid, k)); got != inode(t, p.Path(uid, User)) {
			t.Errorf("%s is owned by user namespace %d, not that of the sandbox", k, got)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(p.Shm(uid), &st); err != nil || st.Uid != want.Users.First || st.Gid != want.Users.First {
		t.Errorf("shared memory belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	if err := insideBoth(p, uid); err != nil {
		t.Error(err)
	}
	if err := errors.Join(p.Release(uid), p.Release(uid)); err != nil {
		t.Error(err)
	}
	if all, err := p.Users(); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	if left, err := filepath.Glob("/proc/self/task/*/children"); err == nil {
		for _, path := range left {
			if raw, err := os.ReadFile(path); err == nil && len(raw) > 0 {
				t.Errorf("processes are left: %s", raw)
			}
		}
	}
}

// insideBoth looks at host name and loopback.
func insideBoth(p *Pins, uid id.Sandbox) error {
	return onOwnThread(func() error {
		for k, flag := range map[Kind]int{UTS: unix.CLONE_NEWUTS, Net: unix.CLONE_NEWNET} {
			if err := enter(p.Path(uid, k), flag); err != nil {
				return err
			}
		}
		var name unix.Utsname
		if err := unix.Uname(&name); err != nil {
			return err
		}
		if got := unix.ByteSliceToString(name.Nodename[:]); got != "web" {
			return fmt.Errorf("the host name is %q", got)
		}
		raw, err := os.ReadFile("/proc/thread-self/net/if_inet6")
		if err == nil && !strings.Contains(string(raw), "00000000000000000000000000000001") {
			return fmt.Errorf("loopback is not up: %q", raw)
		}
		return err
	})
}

// ownerOf is the number of the user namespace that owns a pinned one.
func ownerOf(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := openPin(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// What is asked for has changed, or was lost in part: it is made anew.
func TestPins_AnotherUserNamespace(t *testing.T) {
	p, uid := newPins(t), id.NewSandbox()
	for _, users := range []*Users{nil, {First: 1879048192, Count: 65536}, {First: 1879113728, Count: 65536}, nil} {
		if err := p.Ensure(uid, Wanted{Hostname: "web", Users: users}); err != nil {
			t.Fatal(err)
		}
		first, ok, err := p.FirstUser(uid)
		if err != nil || ok != (users != nil) || ok && first != users.First {
			t.Errorf("got %d, %t, %v, want %+v", first, ok, err, users)
		}
	}
	if err := p.Ensure(uid, Wanted{Hostname: "web", Users: &Users{First: 1879048192, Count: 65536}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(p.Path(uid, User), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if whole, err := p.Whole(uid); err != nil || whole {
		t.Errorf("without its user namespace: whole %t, %v", whole, err)
	}
	if err := p.Release(uid); err != nil {
		t.Error(err)
	}
}
