package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"staddle.internal/kit/fault"
)

// unified is the mount table of a machine with the unified hierarchy only.
const unified = `22 28 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
31 22 0:27 / /sys/fs/pstore rw,nosuid,nodev,noexec,relatime shared:10 - pstore pstore rw
`

func TestParse(t *testing.T) {
	hybrid, err := os.ReadFile(filepath.Join("testdata", "hybrid.mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	controllers := func(list string) func(string) ([]byte, error) {
		return func(string) ([]byte, error) { return []byte(list), nil }
	}
	tree, err := parse([]byte(unified), controllers("cpuset cpu io memory hugetlb pids\n"))
	if err != nil || len(tree.hierarchies) != 1 || !tree.hierarchies[0].unified || !tree.hierarchies[0].has("memory") {
		t.Errorf("unified: got %+v, %v", tree, err)
	}
	tree, err = parse(hybrid, controllers("\n"))
	if err != nil {
		t.Fatal(err)
	}
	memory := slices.IndexFunc(tree.hierarchies, func(h hierarchy) bool { return h.has("memory") })
	both := slices.IndexFunc(tree.hierarchies, func(h hierarchy) bool { return h.unified })
	if memory < 0 || tree.hierarchies[memory].unified || both < 0 || tree.hierarchies[both].has("memory") {
		t.Errorf("hybrid: got %+v", tree)
	}
	if _, err := parse([]byte("1 2 0:3 / / rw - ext4 /dev/sda rw\n"), nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("none: got %v, want invalid", err)
	}
}

func TestCanLimitSwap(t *testing.T) {
	for _, tt := range []struct {
		name    string
		unified bool
		files   []string
		want    bool
	}{
		{"version 1", false, []string{"memory.memsw.limit_in_bytes"}, true},
		{"version 1, swap not counted", false, nil, false},
		{"version 2", true, []string{"system.slice/memory.max", "system.slice/memory.swap.max"}, true},
		{"version 2, swap not counted", true, []string{"system.slice/memory.max"}, false},
		{"version 2, no group yet", true, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range tt.files {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			tree := &Tree{hierarchies: []hierarchy{{dir: dir, unified: tt.unified, controllers: []string{"memory"}}}}
			if got := tree.CanLimitSwap(); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

// Where the kernel can end a whole group it is asked to: by number something that is
// born meanwhile is missed.
func TestTree_KillIsOfTheWholeGroup(t *testing.T) {
	for _, able := range []bool{true, false} {
		dir := t.TempDir()
		file := filepath.Join(dir, "a", "cgroup.kill")
		if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if able {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tree := &Tree{hierarchies: []hierarchy{{dir: dir, unified: true}}}
		if err := errors.Join(tree.kill("/a"), tree.kill("/none")); err != nil {
			t.Errorf("able %t: %v", able, err)
		}
		if got, err := os.ReadFile(file); able && string(got) != "1" || errors.Is(err, os.ErrNotExist) == able {
			t.Errorf("able %t: the kernel was told %q, %v", able, got, err)
		}
	}
}

func TestOOMKills(t *testing.T) {
	for _, tt := range []struct {
		file    string
		unified bool
		content string
	}{
		{"memory.oom_control", false, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"},
		{"memory.events", true, "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a", tt.file), []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		tree := &Tree{hierarchies: []hierarchy{{dir: dir, unified: tt.unified, controllers: []string{"memory"}}}}
		if got, err := tree.OOMKills("/a"); err != nil || got != 3 {
			t.Errorf("%s: got %d, %v, want 3", tt.file, got, err)
		}
		if got, err := tree.OOMKills("/none"); err != nil || got != 0 {
			t.Errorf("%s: no group: got %d, %v, want 0", tt.file, got, err)
		}
	}
}

func TestCanWeighIO(t *testing.T) {
	for _, tt := range []struct {
		name, controller, file string
		unified, want          bool
	}{
		{"version 1 with weights", "blkio", "a/blkio.weight", false, true},
		{"version 1 with a scheduler that has its own", "blkio", "a/blkio.bfq.weight", false, true},
		{"version 1 without", "blkio", "a/blkio.throttle.read_bps_device", false, false},
		{"unified, before any group has it", "io", "io.cost.qos", true, true},
		{"unified with a scheduler that has its own", "io", "a/io.bfq.weight", true, true},
		{"unified without", "io", "a/io.max", true, false},
		{"no controller of disks", "memory", "a/io.weight", true, false},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755), os.WriteFile(filepath.Join(dir, tt.file), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		tree := &Tree{hierarchies: []hierarchy{{dir: dir, unified: tt.unified, controllers: []string{tt.controller}}}}
		if got, err := tree.CanWeighIO("/a"); err != nil || got != tt.want {
			t.Errorf("%s: got %t, %v, want %t", tt.name, got, err, tt.want)
		}
	}
}

func TestTree_ClearEndsWhatRuns(t *testing.T) {
	tree, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/sdcg%d", os.Getpid())
	leaf := group + "/sandbox/web"
	for range 2 {
		if err := tree.Ensure(leaf); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, h := range tree.hierarchies {
		if err := os.WriteFile(filepath.Join(h.path(leaf), "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := tree.Children(group); err != nil || !slices.Equal(names, []string{"sandbox"}) {
		t.Errorf("got children %v, %v", names, err)
	}
	if err := tree.Remove(group); !errors.Is(err, fault.Unavailable) {
		t.Errorf("removed a group that holds a process: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	if err := errors.Join(tree.Clear(group), tree.Clear(group)); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := <-waited; !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v", err)
	}
	if exists, err := tree.Exists(group); err != nil || exists {
		t.Errorf("exists: %t, %v", exists, err)
	}
}
