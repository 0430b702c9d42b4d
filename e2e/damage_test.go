package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// damages are what a loss of power, a full disk or a person does to a file. The
// second half of a young file holds nothing yet: that it is gone may be no damage.
var damages = []struct {
	name string
	kept bool // there is something to keep a copy of
	do   func(path string) error
}{
	{"truncated", true, func(path string) error { return os.Truncate(path, 0) }},
	{"cut to its head", true, func(path string) error { return os.Truncate(path, 10_000) }},
	{"cut in half", false, func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	}},
	{"garbled", true, func(path string) error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 0; i < len(raw); i += 64 {
			raw[i] ^= 0xff
		}
		return os.WriteFile(path, raw, 0o600)
	}},
	{"removed", false, os.Remove},
}

// setAside lists what was kept of a damaged file.
func setAside(t *testing.T, path string) []string {
	t.Helper()
	kept, err := filepath.Glob(path + ".bad-*")
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

// logOf is all that a component of the bed has said.
func logOf(t *testing.T, b *bed.Bed, component string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.Paths.Var("supervisor"), "logs", component+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestNode_ADO4_DamagedNotesAreRebuilt damages each file that sandboxhost keeps its
// notes in, in each way. What containerd has is not touched.
func TestNode_ADO4_DamagedNotesAreRebuilt(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	s := settle(t, b, 5)
	round := 0
	for _, file := range []string{"journal.db", "network.db"} {
		path := filepath.Join(b.Paths.Var("sandboxhost"), file)
		for _, damage := range damages {
			what := fmt.Sprintf("%s %s", file, damage.name)
			if round++; round%2 == 0 {
				b.StopRunner(supervisor)
			} else {
				b.KillRunner(supervisor, true)
			}
			kept := len(setAside(t, path))
			if err := damage.do(path); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			supervisor = b.Start()
			b.WaitReady()
			if took := time.Since(begun); took > 30*time.Second {
				t.Errorf("%s: the start took %v, want 30 s at most", what, took)
			}
			s.same(t, b, what)
			now := setAside(t, path)
			if damage.kept && len(now) != kept+1 {
				t.Errorf("%s: kept %v, there were %d before", what, now, kept)
			}
			if damage.kept && !strings.Contains(logOf(t, b, "sandboxhost"), now[len(now)-1]) {
				t.Errorf("%s: the log does not name %s", what, now[len(now)-1])
			}
			// Who comes now gets an address that nobody has.
			fresh := ensure(t, b, "fresh", spec(never, probe("c", "sleep")))
			got := await(t, b, fresh, "running", running)
			for _, uid := range s.uids {
				if s.status[uid].GetAddresses()[0] == got.GetAddresses()[0] {
					t.Fatalf("%s: address %s was given out twice", what, got.GetAddresses()[0])
				}
			}
			remove(t, b, fresh)
		}
	}
	removeAll(t, b, s.uids...)
	settled(t, b)
}

// fill takes all room of the filesystem with durable data, and returns what gives
// it back.
func fill(t *testing.T, b *bed.Bed) (empty func()) {
	t.Helper()
	path := filepath.Join(b.Paths.Var(""), "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 1; size /= 16 {
		block := make([]byte, size)
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// noDiskGuard has a node fill its disk to the last byte.
const noDiskGuard = "pressure: {disk_min_free: 0B, disk_min_free_percent: 0}\nimages: {gc: {high_percent: 0, min_free: 0B}}"

// TestNode_ADO4_FullStateFilesystem fills the filesystem of all durable data, that
// of containerd too.
func TestNode_ADO4_FullStateFilesystem(t *testing.T) {
	// What guards a disk of an ordinary size would let nothing onto this one.
	opts := bed.Options{Composition: "node", Disabled: nodeAlone, Node: noDiskGuard}
	b := bed.New(t, opts)
	b.PutStateOn("64m")
	supervisor := b.Start()
	b.WaitReady()
	importProbe(t, b)
	s := settle(t, b, 5)
	s.others = []string{ensure(t, b, "victim", spec(always, probe("c", "sleep")))}
	victim := await(t, b, s.others[0], "running", running)
	empty := fill(t, b)

	// 50 wishes that must be written down: each is, or is refused by name.
	refused := 0
	for i := range 50 {
		r := &sandboxhostv1.EnsureSandboxRequest{
			Uid: newUID(), Name: fmt.Sprintf("more-%d", i), Generation: 1, Manager: "local",
			Spec: &resourcev1.SandboxSpec{
				Desired: resourcev1.DesiredState_DESIRED_STATE_STOPPED, Containers: s.wide(),
			},
		}
		_, err := b.Host().EnsureSandbox(t.Context(), r)
		if err == nil {
			removeAll(t, b, r.GetUid())
			continue
		}
		refused++
		if fault.KindOf(err) != fault.Exhausted || fault.Reason(err) != "DISK_FULL" {
			t.Fatalf("wish %d on a full disk: got %v (%v), want Exhausted with reason DISK_FULL", i, err, fault.KindOf(err))
		}
	}
	if refused == 0 {
		t.Fatal("no wish was refused: the disk was not full")
	}
	b.StopRunner(supervisor)
	begun := time.Now()
	supervisor = b.Start()
	b.WaitReady()
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the start on a full disk took %v, want 30 s at most", took)
	}
	s.same(t, b, "after a start on a full disk")

	// What ends is written down where there is still room in the files, or waits and
	// says for what.
	signal(t, victim, syscall.SIGKILL)
	await(t, b, s.others[0], "running again, or says what is wrong", func(s *resourcev1.SandboxStatus) bool {
		return running(s) && s.GetAttempt() == 2 || strings.Contains(s.GetMessage(), "no space left")
	})
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	s.same(t, b, "after another start on a full disk")

	// There is room again: all goes on by itself.
	empty()
	got := await(t, b, s.others[0], "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() == 2 })
	if exits := got.GetExits(); len(exits) != 1 || exits[0].GetSignal() != 9 {
		t.Errorf("got exits %v, want one by signal 9", exits)
	}
	s.same(t, b, "after there was room again")
	fresh := ensure(t, b, "fresh", spec(never, probe("c", "sleep")))
	await(t, b, fresh, "running", running)
	removeAll(t, b, append(append(s.uids, s.others...), fresh)...)
	settled(t, b)
}

// wide is a container whose wish takes a lot of room.
func (s *survivors) wide() []*resourcev1.ContainerSpec {
	c := probe("c", "sleep")
	for i := range 64 {
		c.Env = append(c.Env, &resourcev1.EnvironmentVariable{Name: fmt.Sprintf("VAR_%d", i), Value: strings.Repeat("x", 1000)})
	}
	return []*resourcev1.ContainerSpec{c}
}
