package bed

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// inventory is what of a bed is in the kernel and in containerd, by kind.
type inventory map[string][]string

// inventory takes stock. Kinds that cannot be asked at the moment are left out
// only when the reason is that they are not there.
func (b *Bed) inventory() inventory {
	b.t.Helper()
	inv := inventory{}
	for pid, name := range b.Processes() {
		inv["processes"] = append(inv["processes"], fmt.Sprintf("%s %d", name, pid))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	b.must(err)
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], b.Paths.Root+"/") {
			inv["mounts"] = append(inv["mounts"], fields[4])
		}
	}
	inv["cgroups"] = b.cgroups()
	links, err := exec.Command("ip", "-n", b.NS, "-o", "link", "show").Output()
	b.must(err)
	for line := range strings.Lines(string(links)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			inv["links"] = append(inv["links"], strings.TrimSuffix(fields[1], ":"))
		}
	}
	tables, err := exec.Command("ip", "netns", "exec", b.NS, "nft", "list", "tables").Output()
	b.must(err)
	for line := range strings.Lines(string(tables)) {
		inv["tables"] = append(inv["tables"], strings.TrimSpace(line))
	}
	return inv
}

// cgroups lists the cgroups of the bed's workloads in all hierarchies.
func (b *Bed) cgroups() []string {
	var found []string
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*")
	b.must(err)
	for _, h := range append(hierarchies, "/sys/fs/cgroup") {
		top := filepath.Join(h, b.Parent)
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				if os.IsNotExist(err) {
					return nil
				}
				return err
			}
			if d.IsDir() && path != top {
				found = append(found, path)
			}
			return nil
		})
		b.must(err)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Sandboxes is what is there per sandbox while a node runs: what must be gone
// when the last sandbox is.
type Sandboxes struct {
	Shims   []int
	Mounts  []string
	Cgroups []string
	Links   []string
	Files   []string
}

// Empty says that nothing is left.
func (s Sandboxes) Empty() bool {
	return len(s.Shims)+len(s.Mounts)+len(s.Cgroups)+len(s.Links)+len(s.Files) == 0
}

// SandboxRemains takes stock of what belongs to single sandboxes.
func (b *Bed) SandboxRemains() Sandboxes {
	b.t.Helper()
	inv := b.inventory()
	s := Sandboxes{Shims: b.Shims()}
	for _, g := range inv["cgroups"] {
		if filepath.Base(g) != "shims" { // belongs to the node, for all shims
			s.Cgroups = append(s.Cgroups, g)
		}
	}
	for _, m := range inv["mounts"] {
		if m != b.hostRun() && m != b.Paths.Var("") { // these folders are mounts themselves
			s.Mounts = append(s.Mounts, m)
		}
	}
	for _, l := range inv["links"] {
		if strings.HasPrefix(l, "v") {
			s.Links = append(s.Links, l)
		}
	}
	for _, dir := range []string{"sandboxhost", "shims", "runc/staddle", "containerd/io.containerd.runtime.v2.task/staddle"} {
		entries, err := os.ReadDir(filepath.Join(b.Paths.Run(), dir))
		if err != nil && !os.IsNotExist(err) {
			b.must(err)
		}
		for _, e := range entries {
			if dir != "sandboxhost" || len(e.Name()) == 26 {
				s.Files = append(s.Files, filepath.Join(dir, e.Name()))
			}
		}
	}
	return s
}

// hostRun is where sandboxhost keeps pins, FIFOs and files of sandboxes.
func (b *Bed) hostRun() string { return filepath.Join(b.Paths.Run(), "sandboxhost") }

// down takes the machine down and compares with what was there before it.
func (b *Bed) down() {
	for _, c := range b.conns {
		_ = c.Close()
	}
	if b.t.Failed() {
		b.dumpLogs()
	}
	b.Mend()
	if r := b.CLI("down", "--yes"); r.Code != 0 {
		b.t.Errorf("staddle down: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if slices.Contains(b.before["mounts"], b.Paths.Var("")) {
		b.command("umount", b.Paths.Var(""))
	}
	after := b.inventory()
	for kind, left := range after {
		left = slices.DeleteFunc(left, func(s string) bool { return slices.Contains(b.before[kind], s) })
		if len(left) > 0 {
			b.t.Errorf("left behind after staddle down: %s: %s", kind, strings.Join(left, ", "))
		}
	}
	b.pullCables()
	b.command("ip", "netns", "del", b.NS)
	if len(after["mounts"]) > 0 {
		b.t.Errorf("folder %s is kept: something is mounted in it", b.Paths.Root)
		return
	}
	if err := os.RemoveAll(b.Paths.Root); err != nil {
		b.t.Error(err)
	}
}

// dumpLogs shows the end of what every process had to say.
func (b *Bed) dumpLogs() {
	logs, err := filepath.Glob(filepath.Join(b.Paths.Var("supervisor"), "logs", "*.log"))
	if err != nil {
		b.t.Error(err)
	}
	for _, path := range append(logs, filepath.Join(b.Paths.Root, "supervisor.log")) {
		raw, err := os.ReadFile(path)
		if err != nil {
			b.t.Logf("%s: %v", path, err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		if len(lines) > 40 {
			lines = lines[len(lines)-40:]
		}
		b.t.Logf("--- %s\n%s", filepath.Base(path), strings.Join(lines, "\n"))
	}
}

// ShowGoroutines ends a process so that it tells where all its goroutines are, and shows
// that: for a test that has failed.
func (b *Bed) ShowGoroutines(component string) {
	path := filepath.Join(b.Paths.Var("supervisor"), "logs", component+".log")
	before, err := os.Stat(path)
	if err != nil {
		b.t.Logf("%s: %v", path, err)
		return
	}
	pid := b.PID(component)
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		b.t.Logf("%s: %v", component, err)
		return
	}
	Eventually(b.t, 10*time.Second, component+" has told all and ended", func(context.Context) (bool, string) { return !Alive(pid), procState(pid) })
	raw, err := os.ReadFile(path)
	if err != nil || int64(len(raw)) < before.Size() {
		b.t.Logf("%s: %d bytes, %v", path, len(raw), err)
		return
	}
	b.t.Logf("--- goroutines of %s\n%s", component, raw[before.Size():])
}
