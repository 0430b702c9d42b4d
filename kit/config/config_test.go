package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string) (*Node, *Error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := LoadNode(path)
	if err == nil {
		return n, nil
	}
	wrong, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %T, want *Error: %v", err, err)
	}
	if !strings.Contains(wrong.Error(), path) {
		t.Errorf("%q does not name the file", wrong)
	}
	return nil, wrong
}

// wants checks that one problem stands in this line, at this key, and says this.
func wants(t *testing.T, err *Error, line int, key string, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted; want line %d, key %s", line, key)
	}
	for _, p := range err.Problems {
		if p.Line == line && p.Key == key {
			for _, text := range texts {
				if whole := p.in("f"); !strings.Contains(whole, text) {
					t.Errorf("%q does not say %q", whole, text)
				}
			}
			return
		}
	}
	t.Errorf("no problem in line %d at key %q; got:\n%v", line, key, err)
}

func TestLoadNode_OnlyTheVersionMeansTheDefaults(t *testing.T) {
	n, err := load(t, "version: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := DefaultNode(); !reflect.DeepEqual(*n, want) {
		t.Errorf("got %+v\nwant %+v", *n, want)
	}
	if problems := n.Validate(); len(problems) > 0 {
		t.Errorf("the defaults are wrong: %v", problems)
	}
}

func TestLoadNode_Whole(t *testing.T) {
	n, err := load(t, `
version: 1
name: node7
labels: {zone: a}
coordinator: {address: "10.0.0.1:8443", ca: /a, certificate: /b, key: /c}
containerd: {managed: false, address: /run/c.sock, namespace: other}
network: {bridge: br7, subnet: 10.1.0.0/20, disable: true}
allow_host_network: true
images: {plain_http: ["reg:5000"], registry_dir: /r, auth_file: /a.json, max_pulls: 5, max_layers: 2, stall_timeout: 1m}
logs: {max_size_per_stream: 2GiB}
sandboxes: {cgroup_parent: x.slice, boot_hold: 1m, tidy_period: 2m}
presence: {session_ttl: 20s, hold_down: 0s}
users: {first_id: 70000, admin_group: wheel}
supervisor:
  composition: machine
  start_timeout: 30s
  stop_timeout: 5s
  backoff: {initial: 50ms, cap: 5s, stable: 30s}
  components:
    - {name: extra, command: [/bin/x, -v], needs: [storage], env: {A: b}, capabilities: [CAP_NET_ADMIN], start_timeout: 2s}
    - {name: presence, order_only: [extra]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if n.Logs.MaxSizePerStream != 2<<30 || n.Sandboxes.BootHold.Std() != time.Minute || n.Network.Subnet.String() != "10.1.0.0/20" ||
		n.Labels["zone"] != "a" || n.Supervisor.Components[0].Env["A"] != "b" || n.Images.PlainHTTP[0] != "reg:5000" {
		t.Errorf("got %+v", n)
	}
}

// CLI-3: every key of the schema misspelt is refused with file, line, key and
// nearest key.
func TestLoadNode_CLI3_EveryKeyMisspelt(t *testing.T) {
	for _, path := range keys(reflect.TypeFor[Node](), nil) {
		name := path[len(path)-1]
		wrong := name[:len(name)-1] + "x" + name[len(name)-1:]
		text, line := "", 0
		for depth, part := range path {
			indent := strings.Repeat("  ", depth)
			if depth == len(path)-1 {
				part = wrong
			}
			text += fmt.Sprintf("%s%s:\n", indent, part)
			line++
		}
		text = strings.TrimSuffix(text, "\n") + " 1\n"
		key := strings.Join(append(slices.Clone(path[:len(path)-1]), wrong), ".")
		_, err := load(t, text)
		wants(t, err, line, key, "unknown", fmt.Sprintf("%q", name))
	}
}

// keys lists the paths of all keys of a schema, lists and maps aside.
func keys(t reflect.Type, prefix []string) [][]string {
	var out [][]string
	for name, i := range fieldsOf(t) {
		path := append(slices.Clone(prefix), name)
		out = append(out, path)
		if f := t.Field(i).Type; f.Kind() == reflect.Struct && f.Name() != "Prefix" {
			out = append(out, keys(f, path)...)
		}
	}
	return out
}

func TestLoadNode_CLI3_WrongValues(t *testing.T) {
	tests := []struct {
		name, text string
		line       int
		key        string
		says       []string
	}{
		{"unknown section", "version: 1\nstorage:\n  a: 1\n", 2, "storage", []string{"unknown", "known keys here"}},
		{"doubled key", "version: 1\nname: a\nname: b\n", 3, "name", []string{"line 2"}},
		{"doubled nested key", "version: 1\nlogs:\n  max_size_per_stream: 1MiB\n  max_size_per_stream: 2MiB\n", 4, "logs.max_size_per_stream", []string{"line 3"}},
		{"number for a text", "version: 1\nname: 12\n", 2, "name", []string{"the number 12", "quotes"}},
		{"text for a number", "version: one\n", 1, "version", []string{`the text "one"`, "whole number"}},
		{"text for a switch", "version: 1\nallow_host_network: \"yes\"\n", 2, "allow_host_network", []string{"true or false"}},
		{"list for a group", "version: 1\nnetwork: []\n", 2, "network", []string{"a list"}},
		{"group for a list", "version: 1\nimages:\n  plain_http: {a: b}\n", 3, "images.plain_http", []string{"not a list"}},
		{"no value", "version: 1\nname:\n", 2, "name", []string{"missing"}},
		{"negative duration", "version: 1\npresence:\n  session_ttl: -5s\n", 3, "presence.session_ttl", []string{"-5s", "out of bounds", "5s"}},
		{"zero duration", "version: 1\npresence:\n  session_ttl: 0s\n", 3, "presence.session_ttl", []string{"out of bounds"}},
		{"huge duration", "version: 1\npresence:\n  session_ttl: 999999h\n", 3, "presence.session_ttl", []string{"out of bounds"}},
		{"overflowing duration", "version: 1\npresence:\n  session_ttl: 99999999999h\n", 3, "presence.session_ttl", []string{"no duration"}},
		{"duration without unit", "version: 1\npresence:\n  session_ttl: 15\n", 3, "presence.session_ttl", []string{"no duration", "10s"}},
		{"size without unit", "version: 1\nlogs:\n  max_size_per_stream: 64\n", 3, "logs.max_size_per_stream", []string{"512MiB"}},
		{"overflowing size", "version: 1\nlogs:\n  max_size_per_stream: 9999999999TiB\n", 3, "logs.max_size_per_stream", []string{"no size"}},
		{"cleaning that never ends", "version: 1\nimages:\n  gc:\n    high_percent: 70\n    low_percent: 75\n", 5, "images.gc.low_percent", []string{"75", "high_percent, which is 70"}},
		{"images that go before they may", "version: 1\nimages:\n  gc:\n    max_age: 5m\n", 4, "images.gc.max_age", []string{"5m0s", "10m0s"}},
		{"huge free size", "version: 1\npressure:\n  disk_min_free: 2TiB\n", 3, "pressure.disk_min_free", []string{"out of bounds", "1TiB"}},
		{"more than all ids", "version: 1\npressure:\n  pid_min_free_percent: 51\n", 3, "pressure.pid_min_free_percent", []string{"51", "from 0 to 50"}},
		{"no pulls at all", "version: 1\nimages:\n  max_pulls: 0\n", 3, "images.max_pulls", []string{"out of bounds", "1 to 64"}},
		{"many layers", "version: 1\nimages:\n  max_layers: 33\n", 3, "images.max_layers", []string{"out of bounds"}},
		{"relative folder", "version: 1\nimages:\n  registry_dir: certs.d\n", 3, "images.registry_dir", []string{"absolute"}},
		{"relative folder of exports", "version: 1\nlogs:\n  cri:\n    directory: logs\n", 4, "logs.cri.directory", []string{"absolute"}},
		{"one file of exports", "version: 1\nlogs:\n  cri:\n    max_files: 1\n", 4, "logs.cri.max_files", []string{"2 to 1000"}},
		{"collector by URL", "version: 1\nlogs:\n  otlp:\n    endpoint: http://c:4317\n", 4, "logs.otlp.endpoint", []string{"host:port"}},
		{"collector in the clear", "version: 1\nlogs:\n  otlp:\n    endpoint: c:4317\n    insecure: true\n", 5, "logs.otlp.insecure", []string{"another machine"}},
		{"no collector", "version: 1\nlogs:\n  otlp:\n    insecure: true\n", 4, "logs.otlp.endpoint", []string{"host:port"}},
		{"tiny size", "version: 1\nlogs:\n  max_size_per_stream: 1B\n", 3, "logs.max_size_per_stream", []string{"out of bounds"}},
		{"metrics for everybody", "version: 1\nmetrics:\n  listen_address: 0.0.0.0:9464\n", 3, "metrics.listen_address", []string{"loopback", "127.0.0.1:9464"}},
		{"metrics at a name", "version: 1\nmetrics:\n  listen_address: localhost:9464\n", 3, "metrics.listen_address", []string{"loopback"}},
		{"metrics at no port", "version: 1\nmetrics:\n  listen_address: 127.0.0.1:0\n", 3, "metrics.listen_address", []string{"loopback"}},
		{"other version", "version: 2\n", 1, "version", []string{"write 1"}},
		{"bad name", "version: 1\nname: Node_1\n", 2, "name", []string{"lower-case"}},
		{"bad address", "version: 1\ncoordinator:\n  address: 1.2.3.4\n", 3, "coordinator.address", []string{"host:port"}},
		{"bad subnet", "version: 1\nnetwork:\n  subnet: 10.77.0.1/16\n", 3, "network.subnet", []string{"host bits", "10.77.0.0/16"}},
		{"no subnet", "version: 1\nnetwork:\n  subnet: abc\n", 3, "network.subnet", []string{"abc"}},
		{"IPv4 as IPv6", "version: 1\nnetwork:\n  subnet6: 10.0.0.0/16\n", 3, "network.subnet6", []string{"IPv6 network"}},
		{"host bits of IPv6", "version: 1\nnetwork:\n  subnet6: fd00::1/64\n", 3, "network.subnet6", []string{"host bits", "fd00::/64"}},
		{"tiny IPv6", "version: 1\nnetwork:\n  subnet6: fd00::/120\n", 3, "network.subnet6", []string{"/48 to /112"}},
		{"IPv6 smaller than IPv4", "version: 1\nnetwork:\n  subnet: 10.0.0.0/8\n  subnet6: fd00::/112\n", 4, "network.subnet6", []string{"fewer addresses", "fd00::/64"}},
		{"multicast", "version: 1\nnetwork:\n  subnet6: ff00::/64\n", 3, "network.subnet6", []string{"another use", "fd00::/8"}},
		{"link-local", "version: 1\nnetwork:\n  subnet6: fe80::/64\n", 3, "network.subnet6", []string{"another use"}},
		{"relative path", "version: 1\ncontainerd:\n  address: c.sock\n", 3, "containerd.address", []string{"absolute"}},
		{"need of nothing", "version: 1\nsupervisor:\n  components:\n    - name: presence\n      needs: [storag]\n", 4, "supervisor.components[0]", []string{`"storage"`}},
		{"circle", "version: 1\nsupervisor:\n  components:\n    - name: storage\n      needs: [presence]\n", 4, "supervisor.components", []string{"presence -> storage -> presence", "circle"}},
		{"own without command", "version: 1\nsupervisor:\n  components:\n    - name: extra\n", 4, "supervisor.components[0].command", []string{"no command"}},
		{"anchor", "version: 1\nname: &a x\n", 2, "name", []string{"anchors"}},
		{"merge key", "version: 1\nnetwork:\n  <<: {disable: true}\n", 3, "network.<<", []string{"unknown"}},
		{"empty", "", 1, "", []string{"empty", "version: 1"}},
		{"only a comment", "# hello\n", 1, "", []string{"empty"}},
		{"null", "---\n", 1, "", []string{"empty"}},
		{"byte order mark", "\xef\xbb\xbfversion: 1\n", 1, "", []string{"byte order mark"}},
		{"tabs", "version: 1\nnetwork:\n\tdisable: true\n", 3, "", []string{"tab", "spaces"}},
		{"no YAML", "version: 1\nname: \"a\n", 2, "", []string{"no YAML"}},
		{"a list", "- a\n", 1, "", []string{"a list"}},
		{"a text", "hello\n", 1, "", []string{"the text"}},
		{"two documents", "version: 1\n---\nversion: 1\n", 2, "", []string{"second document"}},
		{"deep nest", "version: 1\nname: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n", 2, "name", []string{"a list"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := load(t, tc.text)
			wants(t, err, tc.line, tc.key, tc.says...)
		})
	}
}

func TestLoadNode_AllProblemsAtOnceInOrder(t *testing.T) {
	_, err := load(t, "version: 1\nnam: x\nnetwork:\n  subnet: [1]\npresence:\n  hold_down: 9h\n")
	if err == nil || len(err.Problems) != 3 {
		t.Fatalf("got %v", err)
	}
	if !slices.IsSortedFunc(err.Problems, func(a, b Problem) int { return a.Line - b.Line }) {
		t.Errorf("not in the order of the file: %v", err)
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 3 {
		t.Errorf("%d lines, want one per problem: %s", lines, err)
	}
}

func TestLoadNode_MissingAndLargeFiles(t *testing.T) {
	_, err := LoadNode(filepath.Join(t.TempDir(), "none.yaml"))
	wrong, ok := errors.AsType[*Error](err)
	if !ok || !strings.Contains(err.Error(), "--config") {
		t.Errorf("missing file: %v", err)
	}
	if _, ok := any(wrong).(interface{ ConfigAtFault() }); !ok {
		t.Error("the error does not say that the configuration is at fault")
	}
	_, large := load(t, "version: 1\n"+strings.Repeat("# x\n", maxFileSize/4))
	wants(t, large, 0, "", "larger than")
	many := "version: 1\n"
	for i := range 200 {
		many += fmt.Sprintf("bad%d: 1\n", i)
	}
	_, bounded := load(t, many)
	if bounded == nil || len(bounded.Problems) != maxProblems+1 || !strings.Contains(bounded.Error(), "150 more") {
		t.Errorf("got %v", bounded)
	}
}

func TestNode_Resolve(t *testing.T) {
	n := DefaultNode()
	n.Coordinator.Key = "/kept"
	n.Resolve(Paths{Root: "/r"})
	got := []string{n.Coordinator.CA, n.Coordinator.Certificate, n.Coordinator.Key, n.Containerd.Address}
	if want := []string{"/r/etc/pki/ca.crt", "/r/etc/pki/node.crt", "/kept", "/r/run/containerd.sock"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPaths(t *testing.T) {
	var system Paths
	got := []string{system.Etc(), system.Var("storage"), system.Run(), system.Socket("storage"), system.NodeFile(), system.Lock("storage")}
	want := []string{"/etc/staddle", "/var/lib/staddle/storage", "/run/staddle", "/run/staddle/storage.sock", "/etc/staddle/node.yaml", "/var/lib/staddle/storage/lock"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	moved := Paths{Root: "/r"}
	got = []string{moved.Etc(), moved.Var("storage"), moved.Run(), moved.CoordinatorFile()}
	if want = []string{"/r/etc", "/r/var/storage", "/r/run", "/r/etc/coordinator.yaml"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	path, err := moved.Binary("storage")
	if exe, _ := os.Executable(); err != nil || path != filepath.Join(filepath.Dir(exe), "staddle-storage") {
		t.Errorf("got %s, %v", path, err)
	}
}

// TestPaths_NoNodeHasTheCgroupOfAnother holds for each pair of nodes of one
// machine: what one of them ends or removes when it is taken down is not the other's.
func TestPaths_NoNodeHasTheCgroupOfAnother(t *testing.T) {
	nodes := []Paths{{}, {Root: "/r"}, {Root: "/r/s"}, {Root: "/other"}}
	for _, a := range nodes {
		for _, b := range nodes {
			for _, of := range []func(Paths) string{Paths.ComponentCgroup, Paths.WorkloadCgroup} {
				if a != b && strings.HasPrefix(of(a)+"/", of(b)+"/") {
					t.Errorf("%q of root %q lies in %q of root %q", of(a), a.Root, of(b), b.Root)
				}
			}
		}
	}
	var n Node
	if n.Resolve(Paths{}); n.Sandboxes.CgroupParent != "staddle.slice" {
		t.Errorf("without a root workloads run in %q", n.Sandboxes.CgroupParent)
	}
}

// position returns the index of each component.
func position(graph []Component) map[string]int {
	out := map[string]int{}
	for i, c := range graph {
		out[c.Name] = i
	}
	return out
}

func TestNode_GraphIsAStartOrder(t *testing.T) {
	for _, composition := range []string{CompositionNode, CompositionMachine} {
		n := DefaultNode()
		n.Supervisor.Composition = composition
		graph := n.Graph()
		at := position(graph)
		for i, c := range graph {
			for _, need := range slices.Concat(c.Needs, c.OrderOnly) {
				if j, ok := at[need]; !ok || j >= i {
					t.Errorf("%s: %s needs %s, which does not come before", composition, c.Name, need)
				}
			}
		}
		if _, ok := at["coordinator"]; ok != (composition == CompositionMachine) {
			t.Errorf("%s: coordinator in the graph: %v", composition, ok)
		}
	}
}

func TestNode_GraphOverrides(t *testing.T) {
	n := DefaultNode()
	n.Containerd.Managed = false
	n.Supervisor.Components = []Component{
		{Name: "storage-agent", Disabled: true},
		{Name: "storage", StopTimeout: Duration(time.Minute), Env: map[string]string{"A": "b"}},
		{Name: "extra", Command: []string{"/x"}, Needs: []string{"storage"}},
	}
	at := position(n.Graph())
	for name, want := range map[string]bool{"containerd": false, "storage-agent": false, "extra": true, "storage": true} {
		if _, ok := at[name]; ok != want {
			t.Errorf("%s in the graph: %v, want %v", name, ok, want)
		}
	}
	if got := n.Neighbours("sandboxhost"); !slices.Equal(got, []string{"containerd", "storage"}) {
		t.Errorf("sandboxhost waits for %v: an unmanaged containerd is waited for too", got)
	}
	if got := n.Neighbours("presence"); slices.Contains(got, "storage-agent") {
		t.Errorf("presence waits for a disabled component: %v", got)
	}
	storage := n.Graph()[at["storage"]]
	if storage.StopTimeout.Std() != time.Minute || storage.Env["A"] != "b" || len(storage.Capabilities) == 0 {
		t.Errorf("storage %+v", storage)
	}
	if got := DefaultNode(); len(got.Neighbours("storage")) != 0 {
		t.Errorf("storage waits for %v", got.Neighbours("storage"))
	}
}

func TestSizeAndDuration_RoundTrip(t *testing.T) {
	for _, text := range []string{"0B", "1B", "1023B", "1KiB", "512MiB", "3GiB", "8TiB"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s.String() != text {
			t.Errorf("%s: got %s, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1MiB", "1.5GiB", "1MB", "1", "8388608TiB"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: accepted as %d", text, s)
		}
	}
	for _, text := range []string{"", "0", "10", "1d", "ten"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: accepted as %s", text, d)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"address", "certificate", "key", "ca"}
	for in, want := range map[string]string{
		"adress": "address", "addrses": "address", "certificat": "certificate", "kye": "key", "KEY": "key", "zzzzzz": "", "subnet": "",
	} {
		if got := Nearest(in, known); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}

func TestUnknownEnv(t *testing.T) {
	got := UnknownEnv([]string{"PATH=/", "STADDLE_LOG=json", "STADDLE_LGO=json", "STADDLE_COMPLETELY_ELSE=1"}, []string{"STADDLE_LOG", "STADDLE_BOOT_ID"})
	if len(got) != 2 || !strings.Contains(got[1], "STADDLE_LGO") || !strings.Contains(got[1], "nearest known one is STADDLE_LOG") ||
		!strings.Contains(got[0], "STADDLE_COMPLETELY_ELSE") {
		t.Errorf("got %q", got)
	}
}

// No input makes the decoder panic or accept what Validate refuses.
func FuzzLoadNode(f *testing.F) {
	for _, seed := range []string{"version: 1\n", "", "a: [", "version: 1\nnetwork: {subnet: 1}\n", "? [a]\n: b\n", "&a [*a]", "version: 1\nsupervisor: {components: [{name: x}]}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := DefaultNode()
		if err := Decode("f", data, &n); err == nil && len(n.Validate()) > 0 {
			t.Errorf("accepted %q", data)
		}
	})
}
