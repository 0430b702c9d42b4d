package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/manifest"
)

// full uses every key of a sandbox's spec.
const full = `kind: Sandbox
name: web
labels: {app: web, tier: "1"}
spec:
  desired: stopped
  containers:
  - name: main
    image: img
    command: [/bin/sh, -c]
    args: ["a b", ""]
    env: [{name: A, value: "1"}, {name: B, from: uid}]
    working_dir: /srv
    user: "1000:1000"
    limits: {memory_limit_bytes: 64MiB, cpu_limit_millicores: 500, pids_limit: "10", cpu_shares: 512, swap_limit_bytes: 16MiB, io_weight: 300}
    disks: [{disk: data, path: /data, read_only: true}]
    tmpfs: [{path: /tmp, size_limit_bytes: 8MiB, mode: "0700", executable: true}]
    files: [{path: /etc/a, text: "a = 1\n", mode: "0400"}, {path: /etc/b, data: AAE=}]
    scratch: [{volume: work, path: /work, read_only: true}]
    host_mounts: [{host_path: /srv/a, path: /a, read_only: true}]
    ulimits: [{name: nofile, soft: 100, hard: 200}]
    oom_score_adjust: -5
    security:
      profile: default
      add_capabilities: [NET_RAW]
      drop_capabilities: [ALL]
      read_only_root: true
      run_as_non_root: true
      seccomp: unconfined
      apparmor: default
      devices: [{path: /dev/fuse, read_only: true}]
    groups: ["2000", more]
    tty: true
    stdin: true
  network: NETWORK_MODE_HOST
  restart_policy: on-failure
  termination_grace_period: 1m30s
  hostname: web
  disconnect: {stop_after: 1h}
  node_selector: {zone: a}
  hosts: [{address: 10.1.2.3, names: [db]}]
  scratch_volumes: [{name: work}]
  shm_size_bytes: 128MiB
  sysctls: [{name: net.core.somaxconn, value: "77"}]
`

func TestRead_TakesEveryKeyAndPrintsItBack(t *testing.T) {
	docs, err := manifest.Read("f", strings.NewReader(full))
	if err != nil {
		t.Fatal(err)
	}
	first := docs[0].Record
	spec := first.GetSandbox().GetSpec()
	if spec.GetTerminationGracePeriod().AsDuration().Seconds() != 90 || spec.GetContainers()[0].GetLimits().GetPidsLimit() != 10 ||
		spec.GetNetwork() != resourcev1.NetworkMode_NETWORK_MODE_HOST || !spec.GetContainers()[0].GetDisks()[0].GetReadOnly() {
		t.Errorf("spec %v", spec)
	}
	for name, encode := range map[string]func(proto.Message) ([]byte, error){"yaml": manifest.YAML, "json": manifest.JSON} {
		text, err := encode(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := manifest.Read(name, strings.NewReader(string(text)))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !proto.Equal(again[0].Record, first) {
			t.Errorf("%s: got %v, want %v", name, again[0].Record, first)
		}
	}
}

// TestRead_RefusesEachMisspeltKey is CLI-3: every key, misspelt, is refused with
// file, line, key and the nearest known one.
func TestRead_RefusesEachMisspeltKey(t *testing.T) {
	keys := []string{"kind", "labels", "spec", "desired", "containers", "command", "args", "env", "value", "working_dir", "limits",
		"memory_limit_bytes", "cpu_limit_millicores", "pids_limit", "disks", "path", "read_only", "network", "restart_policy",
		"termination_grace_period", "hostname", "disconnect", "stop_after", "node_selector"}
	for _, key := range keys {
		bad := strings.Replace(full, key+":", key+"x:", 1)
		_, err := manifest.Read("f.yaml", strings.NewReader(bad))
		if err == nil {
			t.Errorf("%sx is taken", key)
			continue
		}
		for _, part := range []string{"f.yaml:", key + "x: the key is unknown", `the nearest known key is "` + key + `"`} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%sx: %q is missing in %q", key, part, err)
			}
		}
	}
}

func TestRead_Refuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "f:1: there is no document in it"},
		{"only comments", "# nothing\n---\n", "there is no document in it"},
		{"no YAML", "kind: [", "f: "},
		{"a list", "- a\n", "f:1: the document is not keys and values"},
		{"no kind", "name: a\n", "f:1: kind: the key is missing"},
		{"unknown kind", "kind: Pod\nname: a\n", `f:1: kind: "Pod" is no kind`},
		{"no name", "kind: Disk\n", "f:1: name: the key is missing"},
		{"bad name", "kind: Disk\nname: A_b\n", "f:2: name: "},
		{"number for a name", "kind: Disk\nname: 1\n", "f:2: name: the value is no text"},
		{"no spec", "kind: Sandbox\nname: a\n", "f:1: spec: the key is missing"},
		{"no container", "kind: Sandbox\nname: a\nspec: {containers: []}\n", "f:3: spec.containers: "},
		{"doubled key", "kind: Disk\nname: a\nname: b\n", "f:3: name: the key is already given in line 2"},
		{"missing value", "kind: Disk\nname: a\nspec:\n  node:\n", "f:4: spec.node: the value is missing"},
		{"alias", "kind: Disk\nname: a\nspec: {node: &x a}\n", "anchors and aliases"},
		{"text for a list", "kind: Sandbox\nname: a\nspec: {containers: x}\n", `spec.containers: the value is "x", not a list`},
		{"size without unit", "kind: Sandbox\nname: a\nspec: {containers: [{name: m, image: i, limits: {memory_limit_bytes: much}}]}\n", "or a size like 512MiB"},
		{"negative count", "kind: Sandbox\nname: a\nspec: {containers: [{name: m, image: i, limits: {pids_limit: -1}}]}\n", "f:3: spec.containers[0].limits.pids_limit: "},
		{"duration without unit", "kind: Sandbox\nname: a\nspec: {termination_grace_period: 10}\n", "not a duration"},
		{"unknown word", "kind: Sandbox\nname: a\nspec: {restart_policy: sometimes}\n", "write one of always, on-failure, never"},
		{"the zero value of an enum", "kind: Sandbox\nname: a\nspec: {desired: unspecified}\n", "write one of running, stopped"},
		{"two of one name", "kind: Disk\nname: a\n---\nkind: Disk\nname: a\n", `f:4: name: Disk "a" is described already in line 1`},
		{"a label that no selector can name", "kind: Disk\nname: a\nlabels: {\"a,b\": x}\n", "f:3: labels"},
		{"a label whose value no selector can name", "kind: Disk\nname: a\nlabels: {team: \"a,b\"}\n", "f:3: labels"},
		{"too large", strings.Repeat("#", 5<<20), "larger than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			docs, err := manifest.Read("f", strings.NewReader(tt.text))
			if _, ok := errors.AsType[*config.Error](err); !ok {
				t.Fatalf("Read = %v, %v; want a *config.Error", docs, err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q is missing in %q", tt.want, err)
			}
		})
	}
}

func TestRead_RefusesTwoContentsOfOneFile(t *testing.T) {
	doc := "kind: Sandbox\nname: web\nspec:\n  containers:\n  - {name: main, image: img, files: [{path: /a, %s}]}\n"
	for content, want := range map[string]string{
		`text: a, data: AAE=`: "there is text already", `data: "!"`: "in base64", `mode: 0400`: "in quotes", `mode: "0999"`: "mode",
	} {
		_, err := manifest.Read("f.yaml", strings.NewReader(fmt.Sprintf(doc, content)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", content, err, want)
		}
	}
}

// What the rules of the contract refuse across fields is refused in a document.
func TestRead_RefusesWhatDoesNotFitTogether(t *testing.T) {
	tests := map[string]string{
		"two mounts at one path":           "tmpfs: [{path: /a}], files: [{path: /a}]",
		"a mount in /proc":                 "tmpfs: [{path: /proc/x}]",
		"a way up":                         "tmpfs: [{path: /a/../b}]",
		"an unknown scratch volume":        "scratch: [{volume: none, path: /a}]",
		"restricted with a capability":     "security: {profile: restricted, add_capabilities: [NET_RAW]}",
		"restricted and privileged":        "security: {profile: restricted, privileged: true}",
		"all capabilities added":           "security: {add_capabilities: [ALL]}",
		"an unknown capability added":      "security: {add_capabilities: [NET_ADMN]}",
		"an unknown capability dropped":    "security: {drop_capabilities: [NET_RAWW]}",
		"a capability with its prefix":     "security: {drop_capabilities: [CAP_CHOWN]}",
		"swap without memory":              "limits: {swap_limit_bytes: 1MiB}",
		"soft above hard":                  "ulimits: [{name: nofile, soft: 5, hard: 4}]",
		"no soft limit below a hard one":   "ulimits: [{name: nofile, soft: -1, hard: 4}]",
		"a port twice":                     "ports: [{port: 80}, {port: 80, protocol: tcp}]",
		"an unknown ulimit":                "ulimits: [{name: files, soft: 5}]",
		"a ulimit twice":                   "ulimits: [{name: core, soft: 5}, {name: core, soft: 6}]",
		"a variable with two sources":      "env: [{name: A, value: x, from: uid}]",
		"a device that is none":            "security: {devices: [{path: /etc/passwd}]}",
		"a path of the node with a way up": "host_mounts: [{host_path: /srv/../etc, path: /a}]",
	}
	for name, content := range tests {
		doc := "kind: Sandbox\nname: web\nspec:\n  containers:\n  - {name: main, image: img, " + content + "}\n"
		if _, err := manifest.Read("f.yaml", strings.NewReader(doc)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// An image whose reference nobody could ever find is refused before it is asked for.
func TestRead_KnowsImageReferences(t *testing.T) {
	const doc = "kind: Sandbox\nname: web\nspec:\n  containers:\n  - {name: main, image: %q}\n"
	digest := "@sha256:" + strings.Repeat("ab", 32)
	for _, good := range []string{
		"web", "web:1", "team/web_a/b--c.d:1.0-RC_1", "localhost/web", "localhost:5000/web", "Registry.LAN/web:1", "registry/a/b", "10.0.0.1:5000/web",
		"[::1]:5000/web:1", "registry.lan/web" + digest, "registry.lan:5000/a/web:1" + digest,
	} {
		if _, err := manifest.Read("f.yaml", strings.NewReader(fmt.Sprintf(doc, good))); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"Web", "registry.lan/Web:1", "web 1", "web:", "web:a b", "https://registry.lan/web", "registry.lan:port/web", "/web", "web/", "a//b", "web@sha256:1", "web@1",
		"web:" + strings.Repeat("a", 129), " web", "web\n",
	} {
		_, err := manifest.Read("f.yaml", strings.NewReader(fmt.Sprintf(doc, bad)))
		if err == nil || !strings.Contains(err.Error(), "containers[0].image: write host/repository:tag") {
			t.Errorf("%q: got %v, want how to write it", bad, err)
		}
	}
}
