package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
)

func TestEnvironment_IsExact(t *testing.T) {
	own := []string{"PATH=/bin", "SECRET=x", "LISTEN_FDS=3", "NOTIFY_SOCKET=/theirs", "OTEL_EXPORTER=y", "TZ=UTC", "HOME=/root"}
	got := environment(own, []string{"LISTEN_FDS=1"}, map[string]string{"TZ": "CET", "MORE": "1"})
	want := []string{"LISTEN_FDS=1", "MORE=1", "OTEL_EXPORTER=y", "PATH=/bin", "TZ=CET"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCapabilities_LeavesOutWhatWeLack(t *testing.T) {
	own := uint64(1<<unix.CAP_CHOWN | 1<<unix.CAP_KILL)
	numbers, missing := capabilities([]string{"CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_KILL"}, own)
	if !slices.Equal(numbers, []uintptr{unix.CAP_CHOWN, unix.CAP_KILL}) || !slices.Equal(missing, []string{"CAP_SYS_ADMIN"}) {
		t.Errorf("got %v without %v, want CHOWN and KILL without SYS_ADMIN", numbers, missing)
	}
	if err := CheckCapabilities([]string{"CAP_CHOWN", "CAP_FLY"}); err == nil || !strings.Contains(err.Error(), "CAP_FLY") {
		t.Errorf("got %v, want it to name CAP_FLY", err)
	}
}

func TestParseNote(t *testing.T) {
	good := note{boot: "b", pid: 42, started: "77"}
	if got, err := parseNote(good.String()); err != nil || got != good {
		t.Errorf("got %v (%v), want %v", got, err, good)
	}
	for _, text := range []string{"", "b", "b 42", "b x 77", "b 1 77", "b -5 77", "b 42 77 9"} {
		if got, err := parseNote(text); err == nil {
			t.Errorf("got %v of %q, want an error", got, text)
		}
	}
}

// sleeper is a process of another program, noted as the component's.
func sleeper(t *testing.T, dir, name, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // most have ended
		_ = cmd.Wait()         // by a signal
	})
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil { // "up\n": its traps are set
		t.Fatal(err)
	}
	boot, err := boottime.ID()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeNote(dir, name, boot, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func gone(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	ended, err := waitFD(t.Context(), fd, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func TestEndLeftover(t *testing.T) {
	boot, err := boottime.ID()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, script string
		ours         bool
		change       func(text string) string
		lives        bool
	}{
		{"a foreign one is asked to end", "echo up; exec sleep 60", false, nil, false},
		{"one that does not hear is killed", "trap '' TERM; echo up; while :; do sleep 60; done", false, nil, false},
		{"one of ours that ignores its leash is killed", "trap '' TERM; echo up; while :; do sleep 60; done", true, nil, false},
		{"another process with the same number is spared", "echo up; exec sleep 60", false,
			func(s string) string { return strings.TrimSpace(s) + "9\n" }, true},
		{"a note of another boot is none", "echo up; exec sleep 60", false,
			func(s string) string { return "x" + s }, true},
		{"half a note is none", "echo up; exec sleep 60", false, func(s string) string { return s[:10] }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := sleeper(t, dir, "a", tt.script)
			path := notePath(dir, "a")
			if tt.change != nil {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(tt.change(string(text))), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := endLeftover(t.Context(), dir, "a", boot, tt.ours, 200*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if got := !gone(t, cmd.Process.Pid); got != tt.lives {
				t.Errorf("got alive %v, want %v", got, tt.lives)
			}
			if _, err := os.Stat(path); err == nil {
				t.Error("got the note kept, want it gone")
			}
		})
	}
}

func TestTrimOutput_LosesNothingWhileAChildWrites(t *testing.T) {
	dir := t.TempDir()
	f, err := openOutput(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all bytes.Buffer
	for i := range 2000 {
		line := fmt.Sprintf("line %d of the output\n", i)
		all.WriteString(line)
		if _, err := f.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	if dropped, err := newOutputs(dir).trim("a", 1<<20); err != nil || dropped != 0 { // small enough
		t.Fatal(err)
	}
	if _, err := os.Stat(outputPath(dir, "a") + ".1"); err == nil {
		t.Error("got an older file, want none below the limit")
	}
	if dropped, err := newOutputs(dir).trim("a", 30_000); err != nil || dropped != 0 {
		t.Fatalf("got %d bytes dropped, %v", dropped, err)
	}
	if _, err := f.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	all.WriteString("after\n")
	older, err := os.ReadFile(outputPath(dir, "a") + ".1")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := os.ReadFile(outputPath(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(older) + string(newer); got != all.String() {
		t.Errorf("got %d and %d bytes that are not the %d written", len(older), len(newer), all.Len())
	}
	if len(newer) > 30_000 {
		t.Errorf("got %d bytes left, want fewer than the limit", len(newer))
	}
}

// serving returns a Spawner that is served until the test ends.
func serving(t *testing.T) *Spawner {
	s := NewSpawner()
	go s.Serve() // ends with Close
	t.Cleanup(s.Close)
	return s
}

func TestFork_LeavesTheModeOfPassedFiles(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	defer r.Close()
	defer w.Close()
	s := serving(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pid, err := s.spawn(t.Context(), birth{
		path: "/bin/sh", command: []string{"sh", "-c", "exit 7"}, files: []*os.File{null, null, null, r}, attr: &syscall.SysProcAttr{},
	})
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if how := describe(process.Wait()).How; how != "exit code 7" {
		t.Errorf("got %s, want exit code 7", how)
	}
	flags, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("got flags %o (%v), want the file still non-blocking", flags, err)
	}
}

func TestSpawn_TellsWhyAProgramDoesNotStart(t *testing.T) {
	s := serving(t)
	_, err := s.spawn(t.Context(), birth{path: "/does/not/exist", command: []string{"x"}, attr: &syscall.SysProcAttr{}})
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v, want it to name the program", err)
	}
}

func TestCgroup_ClearEndsWhatLeftItsParent(t *testing.T) {
	base, err := CgroupBase(config.Paths{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := makeCgroup(base, "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(g.remove(), cgroup{base}.removeUnused()); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second lives although the first was killed
		dir, err := g.open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "setsid sleep 60 & echo up; wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(cmd.Start(), dir.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
			t.Errorf("got %v, want the child to live until it is killed", err)
		}
		if empty, err := g.empty(); empty || err != nil {
			t.Errorf("got empty %v (%v), want two processes in it", empty, err)
		}
		done := make(chan struct{})
		go func() { // reaps; waited for below
			_ = cmd.Wait() // it is killed
			close(done)
		}()
		if err := g.clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
		if err := g.renew(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSocket_IsMadeAnewOnlyWhenItsPathIsLost(t *testing.T) {
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few empty files
	s := &socket{path: filepath.Join(dir, "a.sock")}
	inode := func() uint64 {
		f, err := s.passed()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		info, err := os.Lstat(s.path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	first := inode()
	if again := inode(); again != first {
		t.Errorf("got socket %d, want %d kept", again, first)
	}
	if err := os.Rename(s.path, s.path+".old"); err != nil {
		t.Fatal(err)
	}
	if fresh := inode(); fresh == first {
		t.Errorf("got socket %d still, want a new one", fresh)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want the path gone", err)
	}
}

// status runs a child of the spec that prints its own rights.
func status(t *testing.T, s Spec) string {
	t.Helper()
	own, err := ownCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	attr, missing := attributes(s, own)
	if len(missing) > 0 {
		t.Fatalf("got %v missing, want root to have them", missing)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pid, err := serving(t).spawn(t.Context(), birth{
		path: "/bin/cat", command: []string{"cat", "/proc/self/status"}, files: []*os.File{r, w, w}, attr: attr, humble: !s.Foreign, reduced: s.reduced(),
	})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSpawn_GivesExactlyTheRightsOfTheSpec(t *testing.T) {
	kept := fmt.Sprintf("%016x", 1<<unix.CAP_CHOWN|1<<unix.CAP_MKNOD)
	none := fmt.Sprintf("%016x", 0)
	tests := []struct {
		name string
		spec Spec
		want []string
	}{
		{"two capabilities", Spec{UID: 64201, GID: 64201, Capabilities: []string{"CAP_CHOWN", "CAP_MKNOD"}},
			[]string{"Uid:\t64201\t64201\t64201\t64201", "CapInh:\t" + kept, "CapPrm:\t" + kept, "CapEff:\t" + kept,
				"CapBnd:\t" + kept, "CapAmb:\t" + kept, "NoNewPrivs:\t1"}},
		{"none", Spec{UID: 64202, GID: 64203},
			[]string{"Gid:\t64203\t64203", "Groups:\t \n", "CapEff:\t" + none, "CapBnd:\t" + none, "NoNewPrivs:\t1"}},
		{"root after them, unreduced", Spec{}, []string{"Uid:\t0\t0", "NoNewPrivs:\t1"}},
		{"one that starts containers", Spec{Foreign: true}, []string{"Uid:\t0\t0", "NoNewPrivs:\t0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := status(t, tt.spec)
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("got\n%s\nwant it to contain %q", text, want)
				}
			}
		})
	}
}

func TestNoted_LeavesOutWhatIsNoNote(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.pid", "gone.pid", ".b.pid", "notify.sock"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := noted(dir)
	if err != nil || !slices.Equal(got, []string{"a", "gone"}) {
		t.Errorf("got %v (%v), want a and gone", got, err)
	}
}
