package manifest_test

import (
	"errors"
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
    env: [{name: A, value: "1"}]
    working_dir: /srv
    user: "1000:1000"
    limits: {memory_limit_bytes: 64MiB, cpu_limit_millicores: 500, pids_limit: "10"}
    disks: [{disk: data, path: /data, read_only: true}]
  network: NETWORK_MODE_HOST
  restart_policy: on-failure
  termination_grace_period: 1m30s
  hostname: web
  disconnect: {stop_after: 1h}
  node_selector: {zone: a}
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
