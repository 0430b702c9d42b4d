package containerd

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStartedBy(t *testing.T) {
	all := []relative{
		{pid: 10, parent: 1, session: 10},  // main process of the container
		{pid: 11, parent: 10, session: 10}, // its child
		{pid: 20, parent: 1, session: 20},  // the command
		{pid: 21, parent: 20, session: 20}, // its child
		{pid: 22, parent: 21, session: 22}, // below that, in a session of its own
		{pid: 23, parent: 22, session: 22},
		{pid: 24, parent: 10, session: 20}, // left by its parent, still in the session
	}
	got := startedBy(all, 20)
	if want := []int{21, 22, 23, 24}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := startedBy(all, 99); len(got) != 0 {
		t.Errorf("of a command that is not there got %v, want none", got)
	}
}

func TestRelativeOf(t *testing.T) {
	session, err := unix.Getsid(0) // 0 if its leader is outside of our process namespace
	if err != nil {
		t.Fatal(err)
	}
	me, ok := relativeOf(os.Getpid())
	if !ok || me.parent != os.Getppid() || me.session != session {
		t.Errorf("got %+v, %v, want parent %d and session %d", me, ok, os.Getppid(), session)
	}
	if _, ok := relativeOf(1 << 30); ok {
		t.Error("a process that is not there was found")
	}
}
