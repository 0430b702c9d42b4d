//go:build systemd

package systemd_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"staddle.internal/kit/config"
)

const unitDir = "../../deploy/systemd"

// settings are the values of a unit file by key, in order.
type settings map[string][]string

func readUnit(t *testing.T, path string) settings {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := settings{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			s[key] = append(s[key], strings.Fields(value)...)
		}
	}
	return s
}

func units(t *testing.T, kind string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(unitDir, "*."+kind))
	if err != nil || len(files) == 0 {
		t.Fatalf("found units %v: %v", files, err)
	}
	return files
}

func TestUnits_AreClean(t *testing.T) {
	n := ready(t)
	var paths []string
	for _, kind := range []string{"service", "socket", "path", "target"} {
		for _, file := range units(t, kind) {
			paths = append(paths, "/usr/local/lib/systemd/system/"+filepath.Base(file))
		}
	}
	if r := n.run(append([]string{"systemd-analyze", "verify"}, paths...)...); r.code != 0 || r.text != "" {
		t.Errorf("systemd-analyze verify ended with %d:\n%s", r.code, r.text)
	}
}

var (
	stated   = regexp.MustCompile(`(?m)^# Exposure by systemd-analyze security: ([0-9.]+)`)
	measured = regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
)

// Each unit says how exposed it is, so that a change of that is seen in review.
func TestUnits_StateTheirExposure(t *testing.T) {
	n := ready(t)
	for _, file := range units(t, "service") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		path := "/usr/local/lib/systemd/system/" + filepath.Base(file)
		said, is := stated.FindSubmatch(text), measured.FindStringSubmatch(n.run("systemd-analyze", "security", "--offline=yes", "--no-pager", path).text)
		if said == nil || is == nil || string(said[1]) != is[1] {
			t.Errorf("%s states %q, is %q", file, said, is)
		}
	}
}

// Order is all that units know of each other, and it is that of the graph.
func TestUnits_KeepTheOrderOfTheGraph(t *testing.T) {
	node := config.DefaultNode()
	node.Supervisor.Composition = config.CompositionMachine
	for _, c := range node.Graph() {
		s := readUnit(t, filepath.Join(unitDir, unit(c.Name)))
		var needs []string
		for _, need := range slices.Concat(c.Needs, c.OrderOnly) {
			needs = append(needs, unit(need))
		}
		after := slices.DeleteFunc(slices.Clone(s["After"]), func(u string) bool { return u == "staddle-workloads.service" })
		for _, list := range [][]string{needs, after, s["Wants"]} {
			slices.Sort(list)
		}
		if !slices.Equal(needs, after) || !slices.Equal(needs, s["Wants"]) {
			t.Errorf("%s: needs %v in the graph, starts after %v and wants %v", c.Name, needs, after, s["Wants"])
		}
		if !slices.Equal(s["AmbientCapabilities"], c.Capabilities) || !slices.Equal(s["CapabilityBoundingSet"], c.Capabilities) {
			t.Errorf("%s: has %v in the graph, ambient %v and bounds %v", c.Name, c.Capabilities, s["AmbientCapabilities"], s["CapabilityBoundingSet"])
		}
	}
	for _, file := range slices.Concat(units(t, "service"), units(t, "socket")) {
		s := readUnit(t, file)
		for _, key := range []string{"Requires", "Requisite", "BindsTo", "Upholds", "PropagatesStopTo", "StopPropagatedFrom"} {
			if s[key] != nil {
				t.Errorf("%s has %s=%v", file, key, s[key])
			}
		}
		if part := partOf(filepath.Base(file)); !slices.Equal(s["PartOf"], part) {
			t.Errorf("%s is part of %v, want %v", file, s["PartOf"], part)
		}
	}
}

// partOf lists the units with which another is stopped: the target, and a process's own
// sockets, beside which systemd would make no new ones.
func partOf(unit string) []string {
	switch unit {
	case "staddle-workloads.service", "staddle-sockets.service":
		return nil
	case "staddle-drain.service":
		return []string{"staddle-workloads.service"}
	case "staddle-coordinator.service":
		return []string{"staddle.target", "staddle-coordinator.socket", "staddle-coordinator-api.socket"}
	case "staddle-containerd.service":
		return []string{"staddle.target"}
	}
	if process, isService := strings.CutSuffix(unit, ".service"); isService {
		return []string{"staddle.target", process + ".socket"}
	}
	return []string{"staddle.target"}
}

// ownMounts are the settings that give a service a mount namespace of its own.
var ownMounts = regexp.MustCompile(`^(Private(Tmp|Devices|Mounts|Network|IPC)|Protect.*|ProcSubset|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|ExecPaths|NoExecPaths|TemporaryFileSystem|Bind.*Paths|Root(Directory|Image)|MountFlags|MountAPIVFS|DynamicUser|LogNamespace|LoadCredential.*|ExtensionImages)$`)

// What these mount is for the machine and for each other.
func TestUnits_ShareTheMountsOfTheMachine(t *testing.T) {
	n := ready(t)
	for _, p := range []string{"containerd", "storage", "sandboxhost"} {
		for key := range maps.Keys(readUnit(t, filepath.Join(unitDir, unit(p)))) {
			if ownMounts.MatchString(key) {
				t.Errorf("%s has %s", p, key)
			}
		}
		if own, its := n.ok("readlink", "/proc/1/ns/mnt"), n.ok("readlink", "/proc/"+n.pid(p)+"/ns/mnt"); own != its {
			t.Errorf("%s is in mount namespace %s, the machine in %s", p, its, own)
		}
	}
}

// Every process is its own user and has the rights of the graph and no others.
func TestUnits_GiveTheRightsOfTheGraph(t *testing.T) {
	n := ready(t)
	node := config.DefaultNode()
	node.Supervisor.Composition = config.CompositionMachine
	for _, c := range node.Graph() {
		if c.Name == config.ContainerdName {
			continue // root, with all that containers may be given
		}
		pid := n.pid(c.Name)
		if user := strings.TrimSpace(n.ok("stat", "--format=%U", "/proc/"+pid)); user != "staddle-"+c.Name {
			t.Errorf("%s runs as %s", c.Name, user)
		}
		status := n.ok("cat", "/proc/"+pid+"/status")
		if !strings.Contains(status, "NoNewPrivs:\t1\n") {
			t.Errorf("%s may get new rights:\n%s", c.Name, status)
		}
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb", "CapInh"} {
			if want, got := mask(c.Capabilities), field(status, set); want != got {
				t.Errorf("%s: %s is %s, want %s", c.Name, set, got, want)
			}
		}
	}
}
