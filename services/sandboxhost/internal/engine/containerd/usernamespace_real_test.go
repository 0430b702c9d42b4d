package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/idrange"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// firstID is where the ids of the tests begin.
const firstID = 0x7000_0000

// mapping is a node with ids for so many user namespaces.
func mapping(t *testing.T, ranges int) *node {
	t.Helper()
	n := newNode(t)
	n.end()
	n.cfg.Rules.UserNamespaces = true
	n.cfg.UserNamespaces = config.UserNamespaces{FirstID: firstID, Ranges: ranges}
	must(t, os.Chmod(n.Dir, 0o711)) // root inside has to get to its root filesystem, as below /run
	n.begin(t)
	return n
}

// withUsers has an attempt ask for a user namespace.
func withUsers(a engine.Attempt) engine.Attempt {
	a.Wish.Spec.UserNamespace = true
	return a
}

func ownerOf(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	must(t, syscall.Stat(path, &st))
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// Root inside is nobody on the node, and all that a container mounts works for it: what
// is the node's keeps its owners, what is its own is the range's.
func TestEngine_UserNamespace(t *testing.T) {
	n := mapping(t, 4)
	disk, allowed := t.TempDir(), t.TempDir()
	for _, dir := range []string{disk, allowed} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(disk, "old"), []byte("of before"), 0o600))
	n.engine.cfg.Rules.HostPaths = []string{allowed}
	one := trying("read:/proc/self/uid_map", "read:/proc/self/gid_map", "write:/new", "stat:/new", "write:/bin/new", "stat:/bin/prog",
		"read:/disk/old", "write:/disk/new", "stat:/disk/new", "write:/scratch/x", "stat:/scratch/x", "write:/host/new", "stat:/host/new",
		"write:/mem/x", "stat:/mem/x", "write:/dev/shm/x", "stat:/dev/shm/x", "stat:/conf", "read:/conf", "read:/etc/hosts",
		"read:/proc/sys/net/core/somaxconn", "read:/proc/sys/kernel/shmmni", "read:/sys/class/net/eth0/operstate", "list:/sys/fs/cgroup", "list:/dev/mqueue", "write:/dev/null", "write:/dev/stdout")
	one.Disks = []*resourcev1.DiskMount{{Disk: "data", Path: "/disk"}}
	one.Tmpfs = []*resourcev1.TmpfsMount{{Path: "/mem"}}
	one.Files = []*resourcev1.ConfigFile{{Path: "/conf", Content: &resourcev1.ConfigFile_Text{Text: "a"}, Mode: "0400"}}
	one.Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/scratch"}}
	one.HostMounts = []*resourcev1.HostMount{{HostPath: allowed, Path: "/host"}}
	other := prog("show")
	other.User = "app"
	a := withUsers(attempt(t, pushed(t), one, other))
	a.Wish.Spec.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "work"}}
	a.Wish.Spec.Sysctls = []*resourcev1.Sysctl{{Name: "net.core.somaxconn", Value: "77"}, {Name: "kernel.shmmni", Value: "99"}}
	a.Disks = map[string]string{"data": disk}
	lines := n.said(t, a)
	wantLines(t, lines, `write:/new=`, "stat:/new=mode=644 uid=0 gid=0", "write:/bin/new=", "stat:/bin/prog=mode=755 uid=0 gid=0",
		`read:/disk/old="of before"`, "stat:/disk/new=mode=644 uid=0 gid=0", "stat:/scratch/x=mode=644 uid=0 gid=0", "stat:/host/new=mode=644 uid=0 gid=0",
		"stat:/mem/x=mode=644 uid=0 gid=0", "stat:/dev/shm/x=mode=644 uid=0 gid=0", "stat:/conf=mode=400 uid=0 gid=0", `read:/conf="a"`,
		`read:/proc/sys/net/core/somaxconn="77\n"`, `read:/proc/sys/kernel/shmmni="99\n"`, `read:/sys/class/net/eth0/operstate="up\n"`)
	for _, line := range lines {
		if strings.Contains(line, "=error") {
			t.Errorf("got %s", line)
		}
	}
	if got, want := strings.Join(lines, "\n"), fmt.Sprintf("%d", firstID); strings.Count(got, want) != 2 || strings.Count(got, "65536") != 2 {
		t.Errorf("the ids are not those of the range:\n%s", got)
	}
	o := n.await(t, uidOf(a), "running", bothRun)
	main := o.Containers[0]
	owner := fmt.Sprintf("%d:%d", firstID, firstID)
	root := fmt.Sprintf("/proc/%d/root", main.PID)
	for path, want := range map[string]string{
		fmt.Sprintf("/proc/%d", main.PID): owner, root + "/new": owner, root + "/mem/x": owner, root + "/dev/shm/x": owner, root + "/conf": owner,
		filepath.Join(disk, "new"): "0:0", filepath.Join(allowed, "new"): "0:0", filepath.Join(n.engine.scratch(uidOf(a)), "work", "x"): "0:0",
		fmt.Sprintf("/proc/%d", o.Containers[1].PID): fmt.Sprintf("%d:%d", firstID+1000, firstID+1000),
	} {
		if got := ownerOf(t, path); got != want {
			t.Errorf("%s belongs to %s on the node, not %s", path, got, want)
		}
	}
	if a, b := readLink(t, main.PID, "user"), readLink(t, o.Containers[1].PID, "user"); a != b {
		t.Errorf("its containers are in user namespaces %s and %s", a, b)
	}
	n.commandHasIDs(t, main.ID, firstID)
	n.clear(t, uidOf(a))
	if got := n.engine.ids.Sandboxes(); len(got) != 0 {
		t.Errorf("ids are left of %v", got)
	}
}

func readLink(t *testing.T, pid uint32, name string) string {
	t.Helper()
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
	must(t, err)
	return target
}

func bothRun(o engine.Observed) bool {
	return len(o.Containers) == 2 && o.Containers[0].State == engine.Running && o.Containers[1].State == engine.Running && o.Namespaces
}

// commandHasIDs requires that a command in a container is in the user namespace with
// these ids.
func (n *node) commandHasIDs(t *testing.T, containerID string, first uint32) {
	t.Helper()
	res, err := n.engine.Exec(t.Context(), engine.Command{
		ContainerID: containerID, ID: "look", Args: []string{testimage.Program, "once", "read:/proc/self/uid_map", "write:/by-command"},
	})
	if err != nil || res.Code != 0 || !strings.Contains(res.Output, fmt.Sprint(first)) || strings.Contains(res.Output, "error") {
		t.Errorf("a command inside gives %+v, %v", res, err)
	}
}

// Ids stay with a sandbox over restarts, also of one whose ledger was lost; no two have
// the same, and they are free again once it is gone.
func TestEngine_UserNamespaceIsAdopted(t *testing.T) {
	n := mapping(t, 2)
	image := pushed(t)
	var all []engine.Attempt
	var before []engine.Observed
	for range 2 {
		a := withUsers(attempt(t, image, prog("sleep"), prog("sleep")))
		n.run(t, a)
		all, before = append(all, a), append(before, n.await(t, uidOf(a), "running", bothRun))
	}
	for _, lose := range []bool{false, true} {
		n.end()
		if lose {
			must(t, os.Remove(filepath.Join(n.cfg.Paths.Var(process), "ids.db")))
		}
		n.begin(t)
		for i, a := range all {
			o := n.await(t, uidOf(a), "running", bothRun)
			if o.Containers[0].PID != before[i].Containers[0].PID {
				t.Errorf("%d is another process", i)
			}
			n.commandHasIDs(t, o.Containers[0].ID, firstID+uint32(i)*idrange.Size)
		}
		third := withUsers(attempt(t, image, prog("sleep")))
		if err := n.engine.Do(t.Context(), third, engine.Action{Step: engine.StepNamespaces}); !errors.Is(err, fault.Exhausted) {
			t.Errorf("a third of two: got %v", err)
		}
		n.clear(t, uidOf(third))
	}
	n.clear(t, uidOf(all[0]))
	again := withUsers(attempt(t, image, prog("sleep"), prog("sleep")))
	n.run(t, again)
	n.commandHasIDs(t, n.await(t, uidOf(again), "running", bothRun).Containers[0].ID, firstID)
	for _, uid := range []id.Sandbox{uidOf(again), uidOf(all[1])} {
		n.clear(t, uid)
	}
}

// What cannot be so is refused, with what to do.
func TestEngine_UserNamespaceRefused(t *testing.T) {
	n := mapping(t, 2)
	image := pushed(t)
	beyond := prog("sleep")
	beyond.User = "70000:0"
	for reason, setUp := range map[string]func() engine.Attempt{
		"USER_NOT_MAPPED": func() engine.Attempt { return withUsers(attempt(t, image, beyond)) },
		"USER_NAMESPACES_DISABLED": func() engine.Attempt {
			n.engine.cfg.Rules.UserNamespaces = false
			return withUsers(attempt(t, image, prog("sleep")))
		},
	} {
		n.engine.cfg.Rules.UserNamespaces = true
		a := setUp()
		var err error
		for _, step := range []engine.Step{engine.StepImages, engine.StepNamespaces, engine.StepNetwork, engine.StepCreate} {
			if err = n.engine.Do(t.Context(), a, engine.Action{Step: step, Container: "a"}); err != nil {
				break
			}
		}
		if fault.Reason(err) != reason {
			t.Errorf("got %v (%s), want %s", err, fault.Reason(err), reason)
		}
		n.clear(t, uidOf(a))
	}
}
