package machine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/target"
)

// goodHost has everything, in the layout of one cgroup tree.
func goodHost() (host, map[string]string) {
	files := map[string]string{
		"/proc/filesystems":                 "nodev\toverlay\n\text4\n",
		"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"/proc/sys/kernel/seccomp":          "",
	}
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		files["/proc/self/ns/"+ns] = ""
	}
	return host{
		read: func(path string) (string, error) {
			if text, ok := files[path]; ok {
				return text, nil
			}
			return "", fs.ErrNotExist
		},
		stat: func(path string) error {
			if _, ok := files[path]; ok {
				return nil
			}
			return fs.ErrNotExist
		},
		nft: func() error { return nil },
	}, files
}

func TestKernelLacks(t *testing.T) {
	tests := []struct {
		name   string
		change func(*host, map[string]string)
		want   []string
	}{
		{"nothing is missing", func(*host, map[string]string) {}, nil},
		{"overlay as a module that is loaded", func(_ *host, f map[string]string) {
			f["/proc/filesystems"] = ""
			f["/sys/module/overlay"] = ""
		}, nil},
		{"no overlay", func(_ *host, f map[string]string) { f["/proc/filesystems"] = "nodev\tnooverlay\n" }, []string{"overlay"}},
		{"no nftables", func(h *host, _ map[string]string) { h.nft = func() error { return unix.EOPNOTSUPP } }, []string{"nftables"}},
		{"a controller is off", func(_ *host, f map[string]string) { f["/sys/fs/cgroup/cgroup.controllers"] = "cpu pids" }, []string{"controller memory"}},
		{"a tree per controller", func(_ *host, f map[string]string) {
			delete(f, "/sys/fs/cgroup/cgroup.controllers")
			f["/sys/fs/cgroup/cpu"], f["/sys/fs/cgroup/memory"], f["/sys/fs/cgroup/pids"] = "", "", ""
		}, nil},
		{"all at once", func(h *host, f map[string]string) {
			clear(f)
			h.nft = func() error { return unix.EOPNOTSUPP }
		}, []string{"overlay", "net namespaces", "mnt", "pid", "ipc", "uts", "nftables", "seccomp", "cpu", "memory", "pids"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, files := goodHost()
			tt.change(&h, files)
			got := kernelLacks(h)
			if len(got) != len(tt.want) {
				t.Fatalf("lacks %v, want %v", got, tt.want)
			}
			for i, l := range got {
				if !strings.Contains(l.What, tt.want[i]) || l.Remedy == "" {
					t.Errorf("lack %d is %+v, want %s with a remedy", i, l, tt.want[i])
				}
			}
		})
	}
}

func TestCheckPrerequisites_NamesMissingToolsAndALongRoot(t *testing.T) {
	m := &Machine{Source: t.TempDir(), Paths: config.Paths{Root: "/" + strings.Repeat("r", 100)}}
	err := m.CheckPrerequisites()
	for _, part := range []string{"containerd-shim-runc-v2", "make build", "shorter --root"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in %v", part, err)
		}
	}
}

// installation is a machine whose binaries are small files.
func installation(t *testing.T) *Machine {
	t.Helper()
	m := &Machine{Source: t.TempDir(), Paths: config.Paths{Root: t.TempDir()}, Out: &strings.Builder{}, Err: &strings.Builder{}}
	for _, name := range binaries {
		if err := os.WriteFile(filepath.Join(m.Source, name), []byte("#!/bin/sh\nexit 0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestInstall_ReplacesOnlyWhatDiffers(t *testing.T) {
	m := installation(t)
	for i, want := range [][]string{binaries, nil, {"runc"}} {
		if i == 2 {
			if err := os.WriteFile(filepath.Join(m.Source, "runc"), []byte("#!/bin/sh\nexit 1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := m.Differing()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("before run %d these differ: %v, %v; want %v", i, got, err, want)
		}
		if err := m.Install(); err != nil {
			t.Errorf("run %d: %v", i, err)
		}
	}
	entries, err := os.ReadDir(m.Bin())
	if err != nil || len(entries) != len(binaries) {
		t.Errorf("files %v, %v; want no temporary ones", entries, err)
	}
	m.Source = m.Bin() // run from where it was installed
	if got, err := m.Differing(); err != nil || got != nil {
		t.Errorf("its own folder differs: %v, %v", got, err)
	}
}

func TestLink_LeavesWhatIsNotOurs(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "bin", "staddle")
	for range 2 {
		if err := link(at, "/lib/staddle"); err != nil || !linked(at, "/lib/staddle") {
			t.Fatalf("no link: %v", err)
		}
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := link(other, "/lib/staddle"); err != nil || linked(other, "/lib/staddle") || linked(at, "/elsewhere") {
		t.Errorf("a file or link of somebody else counts as ours: %v", err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "theirs" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestNext_NamesCommandsThatThePersonCanGive(t *testing.T) {
	m := &Machine{Paths: config.Paths{Root: "/r"}, Home: &target.Home{UID: 1001}}
	want := "\nNext:\n  /r/bin/staddle --root /r ps\n  sudo /r/bin/staddle --root /r logs -f hello\n  sudo /r/bin/staddle --root /r status\n"
	if got := m.next(); got != want {
		t.Errorf("behind sudo:\n%s\nwant\n%s", got, want)
	}
	m.Home.UID = -1
	if got := m.next(); strings.Contains(got, "sudo") {
		t.Errorf("for root: %s", got)
	}
}

func TestConfigure_WritesWhatIsAbsentAndKeepsWhatIsThere(t *testing.T) {
	m := installation(t)
	if err := m.Install(); err != nil {
		t.Fatal(err)
	}
	written, err := m.Configure()
	if err != nil || len(written) != 2 {
		t.Fatalf("Configure wrote %v, %v; want both files", written, err)
	}
	node, err := config.LoadNode(m.Paths.NodeFile())
	if err != nil {
		t.Fatal(err)
	}
	if node.Supervisor.Composition != config.CompositionMachine || node.Users.FirstID != firstUser || !node.Containerd.Managed {
		t.Errorf("node.yaml %+v", node)
	}
	if err := os.WriteFile(m.Paths.NodeFile(), []byte("version: 1\nname: mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if written, err := m.Configure(); err != nil || written != nil {
		t.Errorf("a second run wrote %v, %v", written, err)
	}
	if node, err := config.LoadNode(m.Paths.NodeFile()); err != nil || node.Name != "mine" {
		t.Errorf("node %v, %v; want the file that was there", node, err)
	}
}

func TestConfigure_ShowsWhatTheProgramsRefuse(t *testing.T) {
	m := installation(t)
	if err := m.Install(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.binary("staddle-coordinator"), []byte("#!/bin/sh\necho bad key >&2\nexit 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := m.Configure()
	if _, ok := errors.AsType[*config.Error](err); !ok || !strings.Contains(err.Error(), "bad key") {
		t.Errorf("error %v, want the program's own words", err)
	}
}

func TestRunning_IsWhoHoldsTheLock(t *testing.T) {
	m := &Machine{Paths: config.Paths{Root: t.TempDir()}, Err: &strings.Builder{}}
	if pid, running, err := m.running(); running || err != nil {
		t.Errorf("without a lock: %d, %t, %v", pid, running, err)
	}
	lock := m.Paths.Lock(supervisorName)
	if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("4711\n"); err != nil {
		t.Fatal(err)
	}
	if _, running, err := m.running(); running || err != nil {
		t.Errorf("a lock file that nobody holds: %t, %v", running, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid, running, err := m.running(); !running || pid != 4711 || err != nil {
		t.Errorf("a held lock: %d, %t, %v", pid, running, err)
	}
}

func TestTurn_OneCommandAtATime(t *testing.T) {
	root := t.TempDir()
	var said strings.Builder
	first := &Machine{Paths: config.Paths{Root: root}, Err: io.Discard}
	second := &Machine{Paths: config.Paths{Root: root}, Err: &said}
	end, err := first.turn(t.Context())
	if err != nil {
		t.Fatalf("without an installation: %v", err)
	}
	end()
	if err := os.MkdirAll(first.Bin(), 0o755); err != nil {
		t.Fatal(err)
	}
	if end, err = first.turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*pollPeriod)
	defer cancel()
	if _, err := second.turn(ctx); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("while another has its turn: %v, want Unavailable", err)
	}
	if strings.Count(said.String(), "waiting") != 1 {
		t.Errorf("said %q, want it once", said.String())
	}
	end()
	if end, err = second.turn(t.Context()); err != nil {
		t.Errorf("after it: %v", err)
	}
	end()
}

func TestDown_IsSafeWhenNothingWasEverThere(t *testing.T) {
	var said strings.Builder
	m := &Machine{Paths: config.Paths{Root: filepath.Join(t.TempDir(), "none")}, Out: &said, Err: &said}
	for _, purge := range []bool{false, true} {
		if err := m.Down(t.Context(), purge); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(said.String(), "no supervisor runs") || strings.Contains(said.String(), "removed") || strings.Contains(said.String(), "stays") {
		t.Errorf("said %q", said.String())
	}
}

func TestMountsBelow(t *testing.T) {
	mounts, err := mountsBelow([]string{"/proc"})
	if err != nil || !slices.Contains(mounts, "/proc") {
		t.Errorf("mounts %v, %v; want /proc", mounts, err)
	}
	if mounts, err := mountsBelow([]string{"/pro", t.TempDir()}); err != nil || mounts != nil {
		t.Errorf("mounts %v, %v; want none", mounts, err)
	}
}

func TestHopeless_NeedsSeveralStarts(t *testing.T) {
	g := &supervisorv1.GetGraphResponse{Components: []*supervisorv1.Component{
		{Name: "a", State: supervisorv1.ComponentState_COMPONENT_STATE_BACKING_OFF, Starts: 2},
		{Name: "b", State: supervisorv1.ComponentState_COMPONENT_STATE_STARTING, Starts: 9},
	}}
	if c := hopeless(g); c != nil {
		t.Errorf("gave up on %v", c)
	}
	g.Components[0].Starts = maxStarts
	if c := hopeless(g); c.GetName() != "a" {
		t.Errorf("gave up on %v, want a", c)
	}
}

func TestEnvironment_KeepsOnlyWhatIsMeant(t *testing.T) {
	got := environment("/b", []string{"STADDLE_ROOT=/r", "STADDLE_LOG=json", "OTEL_X=1", "https_proxy=p", "SECRET=s", "LD_PRELOAD=x", "PATH=/evil", "HOME=/root"})
	want := []string{"PATH=/b:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "STADDLE_LOG=json", "OTEL_X=1", "https_proxy=p", "HOME=/root"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCause_IsTheLastErrorOfThisStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	text := `{"time":"2026-01-01T10:00:00Z","level":"ERROR","msg":"process failed","err":"of the start before"}
{"time":"2026-01-01T12:00:00Z","level":"ERROR","msg":"process failed","err":"address in use"}
{"time":"2026-01-01T12:00:01Z","level":"INFO","msg":"process stopped"}
panic: not in the form of a log
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC)
	for since, want := range map[time.Time]string{at: "address in use", at.Add(2 * time.Hour): "", at.Add(-3 * time.Hour): "address in use"} {
		if got := cause(path, since); got != want {
			t.Errorf("since %s: got %q, want %q", since, got, want)
		}
	}
	if got := cause(path+"x", at); got != "" {
		t.Errorf("without a log: got %q", got)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 100<<10)+"\n1\n2\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 2); got != "2\n3" {
		t.Errorf("tail = %q", got)
	}
	if got := tail(path+"x", 2); !strings.Contains(got, "no such file") {
		t.Errorf("tail of nothing = %q", got)
	}
}
