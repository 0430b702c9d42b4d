package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// finding is one of "staddle doctor -o json".
type finding struct {
	State, Part, What, Do string
	Kind, Name            string
	Missing               bool
	SandboxUID            string `json:"sandbox_uid"`
}

// examine runs doctor and returns what it found of state problem or fixed, and
// demands the exit code that goes with it.
func examine(t *testing.T, b *bed.Bed, more ...string) []finding {
	t.Helper()
	r := b.CLI(append([]string{"doctor", "-o", "json"}, more...)...)
	var all []finding
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
		t.Fatalf("doctor: exit code %d: %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	code := 0
	for _, f := range all {
		if f.State == "problem" {
			code = 7
		}
	}
	if r.Code != code {
		t.Errorf("doctor: exit code %d, want %d\n%s", r.Code, code, r.Stdout)
	}
	return slices.DeleteFunc(all, func(f finding) bool { return f.State == "note" || f.Part == "machine" })
}

// findingWords are findings in a form to be compared.
func findingWords(all []finding) []string {
	var list []string
	for _, f := range all {
		how := "left"
		if f.Missing {
			how = "missing"
		}
		list = append(list, fmt.Sprintf("%s %s %s", how, f.Kind, f.Name))
	}
	slices.Sort(list)
	return list
}

func wantFindings(t *testing.T, when string, got []finding, state string, want []string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(findingWords(got), want) {
		t.Errorf("%s: found\n  %s\nwant\n  %s", when, strings.Join(findingWords(got), "\n  "), strings.Join(want, "\n  "))
	}
	for _, f := range got {
		if f.State != state {
			t.Errorf("%s: %s %s: state %q, want %q: %s", when, f.Kind, f.Name, f.State, state, f.What)
		}
	}
}

// plantStray puts one object of every kind that can be made by hand on the node, of a
// sandbox that was never there, and returns what doctor must say.
func plantStray(t *testing.T, b *bed.Bed, like string) []string {
	t.Helper()
	uid := id.NewSandbox()
	low, container := uid.Lower(), uid.Lower()+"-c-1"
	run := filepath.Join(b.Paths.Run(), "sandboxhost", low)
	var want []string
	left := func(kind, name string) { want = append(want, "left "+kind+" "+name) }
	folder := func(kind, path string) {
		must(t, os.MkdirAll(path, 0o700))
		left(kind, path)
	}
	folder("folder", run)
	folder("folder", filepath.Join(run, "files", container))
	must(t, os.MkdirAll(filepath.Join(run, "io"), 0o700))
	fifo := filepath.Join(run, "io", "c-1.stdout")
	must(t, unix.Mkfifo(fifo, 0o600))
	left("pipe", fifo)
	pin := filepath.Join(run, "net")
	must(t, os.WriteFile(pin, nil, 0o600))
	tool(t, "mount", "--bind", "/run/netns/"+b.NS, pin)
	left("namespace", pin)
	folder("output", filepath.Join(b.Paths.Var("sandboxhost"), "logs", low))
	folder("scratch", filepath.Join(b.Paths.Var("sandboxhost"), "scratch", low))
	folder("task folder", filepath.Join(b.Paths.Run(), "containerd/io.containerd.runtime.v2.task/staddle", container))
	folder("task folder", filepath.Join(b.Paths.Run(), "runc/staddle", container))
	cgroup(t, b, low)
	left("cgroup", "/"+b.Parent+"/"+low)
	link := "v" + uid.Short()
	veth(t, b, link, true)
	left("interface", link)
	socket := filepath.Join(b.Paths.Run(), "shims", strings.Repeat("ab", 32))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	left("shim socket", socket)
	b.PlantInContainerd("staddle", container, bed.Planted{Sandbox: string(uid), Like: like})
	left("container", container)
	left("snapshot", container)
	left("start record", container)
	return want
}

// plantForeign puts things of others beside ours, which look as much alike as they
// can, and returns a check that they are still there.
func plantForeign(t *testing.T, b *bed.Bed) func() {
	t.Helper()
	uid := id.NewSandbox()
	run := filepath.Join(b.Paths.Run(), "sandboxhost")
	paths := []string{filepath.Join(run, "foreign"), filepath.Join(run, string(uid)), filepath.Join(b.Paths.Root, "mine")}
	for _, p := range paths {
		must(t, os.MkdirAll(p, 0o700))
	}
	tool(t, "mount", "-t", "tmpfs", "mine", paths[2])
	t.Cleanup(func() { tool(t, "umount", paths[2]) })
	cgroup(t, b, "foreign")
	for name, onBridge := range map[string]bool{"vforeign": true, "v" + uid.Short(): false} {
		veth(t, b, name, onBridge)
		t.Cleanup(func() { tool(t, "ip", "-n", b.NS, "link", "del", name) })
	}
	b.PlantInContainerd("staddle", uid.Lower()+"-x-1", bed.Planted{})
	b.PlantInContainerd("other", id.NewSandbox().Lower()+"-x-1", bed.Planted{Sandbox: string(id.NewSandbox())})
	look := func() string {
		var all []string
		for _, p := range paths {
			_, err := os.Stat(p)
			all = append(all, fmt.Sprint(p, err))
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		all = append(all, fmt.Sprint(strings.Contains(string(mounts), paths[2])))
		all = append(all, tool(t, "ip", "-n", b.NS, "-br", "link", "show", "dev", "vforeign"), tool(t, "ip", "-n", b.NS, "-br", "link", "show", "dev", "v"+uid.Short()))
		groups, err := filepath.Glob("/sys/fs/cgroup/*/" + b.Parent + "/foreign")
		must(t, err)
		unified, err := filepath.Glob("/sys/fs/cgroup/" + b.Parent + "/foreign")
		must(t, err)
		all = append(all, fmt.Sprint(len(groups)+len(unified) > 0))
		for _, namespace := range []string{"staddle", "other"} {
			held, err := b.ContainerdIn(t.Context(), namespace)
			must(t, err)
			all = append(all, slices.DeleteFunc(held, func(s string) bool { return !strings.Contains(s, "-x-1") && !strings.Contains(s, "foreign") })...)
		}
		return strings.Join(all, "\n")
	}
	want := look()
	return func() {
		t.Helper()
		if got := look(); got != want {
			t.Errorf("what belongs to others was touched; before:\n%s\nnow:\n%s", want, got)
		}
	}
}

// cgroup makes a group beside those of sandboxes.
func cgroup(t *testing.T, b *bed.Bed, name string) {
	t.Helper()
	parents, err := filepath.Glob("/sys/fs/cgroup/*/" + b.Parent)
	must(t, err)
	unified, err := filepath.Glob("/sys/fs/cgroup/" + b.Parent)
	must(t, err)
	for _, parent := range append(parents, unified...) {
		must(t, os.Mkdir(filepath.Join(parent, name), 0o755))
	}
}

// veth makes an interface, on the bridge of sandboxes if asked.
func veth(t *testing.T, b *bed.Bed, name string, onBridge bool) {
	t.Helper()
	tool(t, "ip", "-n", b.NS, "link", "add", name, "type", "veth", "peer", "name", "p"+name[1:])
	if onBridge {
		tool(t, "ip", "-n", b.NS, "link", "set", name, "master", "staddle0")
	}
}

// loseTask has a sandbox run of which neither the host nor containerd has a record any
// more, taken away while the host is not there: the next one knows it by its namespaces
// alone and ends it. What says that its container was started is left to doctor.
func loseTask(t *testing.T, b *bed.Bed) {
	t.Helper()
	lost := ensure(t, b, "lost", spec(always, probe("c", "sleep")))
	pid := int(pids(await(t, b, lost, "running", running))["c"])
	container, was := strings.ToLower(lost)+"-c-1", b.PID("sandboxhost")
	b.Stop("sandboxhost")
	b.ForgetInContainerd(container)
	must(t, os.Remove(filepath.Join(b.Paths.Var("sandboxhost"), "journal.db")))
	b.Continue("sandboxhost")
	bed.Eventually(t, waitLong, "the host is another process", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		now := graph["sandboxhost"].GetPid()
		return err == nil && now != 0 && int(now) != was, fmt.Sprint(now, err)
	})
	b.WaitReady()
	bed.Eventually(t, waitLong, "only its start record is left", func(ctx context.Context) (bool, string) {
		held, err := b.Containerd(ctx)
		held = slices.DeleteFunc(held, func(s string) bool { return !strings.Contains(s, container) })
		return err == nil && slices.Equal(held, []string{"record " + container}) && !bed.Alive(pid), fmt.Sprint(held, err, bed.Alive(pid))
	})
	want := []string{"left start record " + container}
	wantFindings(t, "without any record", examine(t, b), "problem", want)
	wantFindings(t, "without any record, with fix", examine(t, b, "--fix"), "fixed", want)
	wantFindings(t, "after that fix", examine(t, b), "", nil)
}

// What is left of sandboxes that are gone is named and removed; what belongs to
// others is neither, and who runs goes on.
func TestDoctor_LIF2_RemovesWhatIsLeft(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	wantFindings(t, "at first", examine(t, b), "", nil)
	web := ensure(t, b, "web", spec(always, probe("one", "sleep"), probe("two", "sleep")))
	was := pids(await(t, b, web, "running", running))
	apart := spec(always, probe("c", "sleep"))
	apart.UserNamespace = true
	other := ensure(t, b, "apart", apart)
	await(t, b, other, "running", running)
	untouched := plantForeign(t, b)
	wantFindings(t, "beside others", examine(t, b), "", nil)
	want := plantStray(t, b, strings.ToLower(web)+"-one-1")
	wantFindings(t, "planted", examine(t, b), "problem", want)
	text := b.CLI("doctor")
	if text.Code != 7 || !strings.Contains(text.Stdout, "staddle doctor --fix") || !strings.Contains(text.Stderr, "containerd: version ") {
		t.Errorf("exit code %d\n%s%s", text.Code, text.Stdout, text.Stderr)
	}
	wantFindings(t, "with fix", examine(t, b, "--fix"), "fixed", want)
	wantFindings(t, "after the fix", examine(t, b), "", nil)
	loseTask(t, b)
	untouched()
	samePIDs(t, b, web, was)
	remove(t, b, other)
	remove(t, b, web)
	wantFindings(t, "in the end", examine(t, b), "", nil)
}

// What is missing of sandboxes that run is named; what can be made again is, and the
// rest says that the sandbox has to be restarted.
func TestDoctor_NamesWhatIsMissing(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	web, cut := ensure(t, b, "web", spec(always, probe("c", "sleep"))), ensure(t, b, "cut", spec(always, probe("c", "sleep")))
	was := pids(await(t, b, web, "running", running))
	await(t, b, cut, "running", running)

	link := "v" + id.Sandbox(web).Short()
	for _, harm := range []struct {
		command []string
		is      func(f finding) bool
	}{
		{[]string{"ip", "netns", "exec", b.NS, "nft", "flush", "ruleset"}, func(f finding) bool { return f.Kind == "network" && strings.Contains(f.What, "rules") }},
		{[]string{"ip", "netns", "exec", b.NS, "nft", "add", "element", "ip", "staddle_staddle0", "sandboxes", "{ 192.0.2.1 }"}, func(f finding) bool { return f.Kind == "network" }},
		{[]string{"ip", "-n", b.NS, "link", "del", link}, func(f finding) bool { return f.Kind == "interface" && f.Name == link && f.Missing }},
	} {
		seen := false
		for range 5 { // the host looks every ten seconds itself, and may be faster
			tool(t, harm.command[0], harm.command[1:]...)
			if seen = slices.ContainsFunc(examine(t, b), harm.is); seen {
				break
			}
		}
		if !seen {
			t.Errorf("not found after %q", harm.command)
		}
		examine(t, b, "--fix")
		wantFindings(t, "after the fix", examine(t, b), "", nil)
	}

	pin := filepath.Join(b.Paths.Run(), "sandboxhost", strings.ToLower(cut), "ipc")
	tool(t, "umount", pin)
	missing := []string{"missing namespace " + pin}
	wantFindings(t, "unpinned", examine(t, b), "problem", missing)
	got := examine(t, b, "--fix")
	wantFindings(t, "unpinned, with fix", got, "problem", missing)
	if len(got) == 1 && !strings.Contains(got[0].Do, "staddle stop cut") {
		t.Errorf("what to do: %q", got[0].Do)
	}
	// It says so itself, to whoever looks at it.
	await(t, b, cut, "running, and says what it lacks", func(s *resourcev1.SandboxStatus) bool {
		return running(s) && s.GetReason() == "NAMESPACES_UNPINNED" && len(s.GetAddresses()) == 1
	})
	if out := b.OK("--node-socket", b.HostSocket(), "ps"); !strings.Contains(out, "is not kept on the node any more") {
		t.Errorf("ps does not say why:\n%s", out)
	}
	b.OK("--node-socket", b.HostSocket(), "stop", "cut")
	b.OK("--node-socket", b.HostSocket(), "start", "cut")
	await(t, b, cut, "running and whole", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetReason() == "" })
	wantFindings(t, "stopped and started", examine(t, b), "", nil)
	samePIDs(t, b, web, was)
	remove(t, b, cut)
	remove(t, b, web)
	wantFindings(t, "in the end", examine(t, b), "", nil)
	settled(t, b)
}

// While a process is down doctor says so, and what it could not find out.
func TestDoctor_WorksWhileProcessesAreDown(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	for _, down := range []string{"sandboxhost", "containerd"} {
		b.Stop(down)
		r := b.CLI("doctor")
		b.Continue(down)
		for _, part := range []string{"could not be compared", down, "something has to be done"} {
			if r.Code != 7 || !strings.Contains(r.Stdout+r.Stderr, part) {
				t.Errorf("%s is down: exit code %d, %q is missing in\n%s%s", down, r.Code, part, r.Stdout, r.Stderr)
			}
		}
		b.WaitReady()
	}
	bed.Eventually(t, waitLong, "nothing is wrong any more", func(context.Context) (bool, string) { // the supervisor takes a moment to see who is gone
		left := examine(t, b)
		return len(left) == 0, sprint(left)
	})
}
