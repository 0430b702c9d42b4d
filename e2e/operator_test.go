package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
)

// UDS-4: a proxy in the environment is asked by nobody, neither for a socket of the
// machine nor for the coordinator, which is not on loopback here.
func TestNode_UDS4_ProxyIsNotAsked(t *testing.T) {
	const proxy = "127.0.0.1:9"
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"} {
		env = append(env, name+"=http://"+proxy)
	}
	far := coordinatorAlone(t)
	b := bed.New(t, bed.Options{Cluster: far, Env: env})
	var asked atomic.Int32
	l := b.ListenAt("tcp", proxy)
	served := make(chan struct{})
	go func() { // ends with the listener
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = conn.Close() // it is counted, that is all
		}
	}()
	t.Cleanup(func() {
		must(t, l.Close())
		<-served
	})
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	for _, process := range []string{"clusteraccess", "sandboxhost", "presence"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.PID(process)))
		if err != nil || !strings.Contains(string(raw), "HTTPS_PROXY=http://"+proxy) {
			t.Fatalf("%s has no proxy in its environment (%v): the test proves nothing", process, err)
		}
	}
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "env", "PATH")
	b.OK("ps")
	if out := b.OK("logs", "web"); !strings.HasPrefix(out, "PATH=") {
		t.Errorf("logs: %.40q", out)
	}
	b.OK("stop", "web")
	b.OK("start", "web")
	b.OK("rm", "web")
	b.OK("--node-socket", b.HostSocket(), "run", "--rm", bed.ProbeImage, "--", "lines", "3")
	b.OK("status")
	b.WaitReady()
	if n := asked.Load(); n != 0 {
		t.Errorf("the proxy was asked %d times", n)
	}
}

// CLI-3: a file that is wrong anywhere is refused as a whole, at once, by whatever
// program reads it: with its place, the key, and what to write instead; and nothing
// was started. kit/config tests every key; here is one of each way to be wrong.
func TestNode_CLI3_WrongFilesStartNothing(t *testing.T) {
	b := bed.New(t, bed.Options{})
	good, err := os.ReadFile(b.Paths.NodeFile())
	must(t, err)
	component := func(text string) string { return "version: 1\nsupervisor:\n  components:\n" + text }
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"key of the file":      {"version: 1\nnmae: a\n", []string{":2: nmae:", "unknown", `"name"`}},
		"key of a section":     {"version: 1\nsandboxes: {cgroup_parnet: a.slice}\n", []string{":2: sandboxes.cgroup_parnet:", `"cgroup_parent"`}},
		"key of a component":   {component("    - {name: storage, need: [containerd]}\n"), []string{":4: supervisor.components[0].need:", `"needs"`}},
		"section":              {"version: 1\npresense: {session_ttl: 10s}\n", []string{":2: presense:", `"presence"`}},
		"wrong type":           {"version: 1\nname: 12\n", []string{":2: name:", "number"}},
		"doubled key":          {"version: 1\nname: a\nname: b\n", []string{":3: name:", "line 2"}},
		"negative":             {"version: 1\npresence: {session_ttl: -5s}\n", []string{":2: presence.session_ttl:", "5s"}},
		"zero":                 {"version: 1\npresence: {session_ttl: 0s}\n", []string{":2: presence.session_ttl:", "5s"}},
		"huge":                 {"version: 1\nsandboxes: {boot_hold: 99999h}\n", []string{":2: sandboxes.boot_hold:"}},
		"empty":                {"", []string{":1:", "empty", "version: 1"}},
		"byte order mark":      {"\xef\xbb\xbfversion: 1\n", []string{":1:", "byte order mark"}},
		"tab":                  {"version: 1\nnetwork:\n\tdisable: true\n", []string{":3:", "tab"}},
		"circle":               {component("    - {name: storage, needs: [presence]}\n"), []string{":4: supervisor.components:", "presence -> storage -> presence"}},
		"component of itself":  {component("    - {name: storage, needs: [storage]}\n"), []string{":4: supervisor.components", "storage -> storage"}},
		"component twice":      {component("    - {name: storage}\n    - {name: presence}\n    - {name: storage}\n"), []string{":6: supervisor.components[2]", `"storage"`, "twice"}},
		"need of nothing":      {component("    - {name: storage, needs: [presenc]}\n"), []string{":4: supervisor.components[0]", `"presence"`}},
		"two mistakes":         {"version: 1\nnmae: a\nlabls: {a: b}\n", []string{":2: nmae:", ":3: labls:"}},
		"no such composition":  {"version: 1\nsupervisor: {composition: cluster}\n", []string{":2: supervisor.composition:", "node or machine"}},
		"text for a number":    {"version: one\n", []string{":1: version:", "number"}},
		"half a file":          {string(good[:len(good)/2]) + "\n  x: [", []string{b.Paths.NodeFile()}},
		"file that is no YAML": {"version: 1\n  name: [\n", []string{b.Paths.NodeFile() + ":"}},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(b.Paths.NodeFile(), []byte(c.text), 0o644))
			for _, process := range []string{"supervisor", "sandboxhost", "presence"} {
				began := time.Now()
				r := b.Program("staddle-node", process, "--root", b.Paths.Root)
				if took := time.Since(began); r.Code != 2 || took > 2*time.Second {
					t.Errorf("%s: exit code %d after %v, want 2 within 2 s\n%s", process, r.Code, took, r.Stderr)
				}
				for _, text := range append(c.says, b.Paths.NodeFile()) {
					if !strings.Contains(r.Stderr, text) {
						t.Errorf("%s does not say %q:\n%s", process, text, r.Stderr)
					}
				}
			}
			if left := b.Processes(); len(left) > 0 {
				t.Errorf("processes were started: %v", left)
			}
			if entries, err := os.ReadDir(b.Paths.Run()); !errors.Is(err, os.ErrNotExist) && len(entries) > 0 {
				t.Errorf("sockets were made: %v, %v", entries, err)
			}
		})
	}
	must(t, os.WriteFile(b.Paths.NodeFile(), good, 0o644))
}

// CLI-3 for the other file, and for the environment: a coordinator that cannot
// start stops nobody else, and names its file to whoever asks.
func TestMachine_CLI3_WrongCoordinatorFile(t *testing.T) {
	b := bed.New(t, bed.Options{Coordinator: "listen_adress: 127.0.0.1:8443", Env: []string{"STADDLE_LOG_FORMT=text"}})
	if r := b.Program("staddle-coordinator", "--root", b.Paths.Root); r.Code != 2 || !strings.Contains(r.Stderr, "listen_adress") || !strings.Contains(r.Stderr, `"listen_address"`) {
		t.Errorf("coordinator by hand: exit code %d\n%s", r.Code, r.Stderr)
	}
	b.Start()
	bed.Eventually(t, waitLong, "the supervisor says that the coordinator's file is wrong", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		c := graph["coordinator"]
		return strings.Contains(c.GetLastExit(), "2"), c.String()
	})
	if text := b.Logs()["coordinator"]; !strings.Contains(text, b.Paths.CoordinatorFile()+":") || !strings.Contains(text, `"listen_address"`) {
		t.Errorf("the coordinator's log: %s", text)
	}
	if text := b.Logs()["supervisor"]; !strings.Contains(text, "STADDLE_LOG_FORMT") {
		t.Errorf("the misspelt variable is not warned of: %.2000s", text)
	}
}

var uidPattern = regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`)

// CLI-4: what a pipe gets is whole, however narrow a terminal is said to be, and
// every id in it names what it was printed for.
func TestMachine_CLI4_PipedTables(t *testing.T) {
	b, _ := machine(t, bed.Options{Env: []string{"COLUMNS=20", "LINES=5", "TERM=xterm"}})
	long := strings.Repeat("n", 62) // the longest name has 63 characters
	names := []string{long + "1", long + "2"}
	for i, name := range names {
		b.OK("disk", "create", name)
		apply(t, b, sandboxYAML(name, "sleep", "")+strings.ReplaceAll(
			sandboxYAML(fmt.Sprintf("disk-%d", i), "sleep", ""), "args: [sleep]", fmt.Sprintf("args: [sleep], disks: [{disk: %s, path: /d}]", name)))
	}
	for _, name := range append(names, "disk-0", "disk-1") {
		awaitPhase(t, b, name, "RUNNING")
	}
	for _, c := range []struct {
		kind string
		args []string
	}{
		{"sandbox", []string{"ps"}}, {"sandbox", []string{"get", "sandbox"}}, {"sandbox", []string{"--node-socket", b.HostSocket(), "ps"}},
		{"disk", []string{"get", "disk"}}, {"disk", []string{"disk", "ls"}}, {"node", []string{"get", "node"}}, {"node", []string{"node", "ls"}},
		{"disklease", []string{"get", "disklease"}},
	} {
		table := b.OK(c.args...)
		lines := strings.Split(strings.TrimSpace(table), "\n")
		if c.kind == "sandbox" || c.kind == "disk" {
			for _, name := range names {
				if strings.Count(table, name+" ") != 1 {
					t.Errorf("%v does not show %s whole:\n%s", c.args, name, table)
				}
			}
		}
		column := slices.Index(strings.Fields(lines[0]), "UID")
		for _, line := range lines[1:] {
			uid := strings.Fields(line)[column]
			if !uidPattern.MatchString(uid) || strings.Contains(line, "…") || strings.Contains(line, "\x1b") {
				t.Errorf("%v: line %q", c.args, line)
				continue
			}
			for _, ref := range []string{uid, strings.ToLower(uid), uid[:24]} {
				got := b.OK("get", c.kind, ref, "-o", "name")
				if strings.TrimSpace(got) != uid {
					t.Errorf("get %s %s gives %q", c.kind, ref, got)
				}
			}
		}
		if bare := strings.Fields(b.OK(append(slices.Clone(c.args), "-o", "name")...)); len(bare) != len(lines)-1 {
			t.Errorf("%v -o name has %d lines, the table %d", c.args, len(bare), len(lines)-1)
		}
	}
	uids := uidPattern.FindAllString(b.OK("get", "sandbox", "-o", "name"), -1)
	for _, args := range [][]string{{"get", "sandbox", uids[0][:6]}, {"delete", "sandbox", uids[0][:6]}, {"rm", uids[0][:6]}} {
		if r := b.CLI(args...); r.Code != 4 || !strings.Contains(r.Stderr, "ambiguous") || !strings.Contains(r.Stderr, uids[1]) {
			t.Errorf("%v: exit code %d, want 4 and all that fit\n%s", args, r.Code, r.Stderr)
		}
	}
	for i, uid := range uids {
		ref := uid
		if i%2 == 1 {
			ref = uid[:25]
		}
		b.OK("delete", "sandbox", ref)
	}
	for _, uid := range strings.Fields(b.OK("get", "disk", "-o", "name")) {
		b.OK("delete", "disk", uid)
	}
	settled(t, b)
}
