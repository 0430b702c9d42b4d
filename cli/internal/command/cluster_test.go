package command_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	kindSandbox = resourcev1.Kind_KIND_SANDBOX
	kindDisk    = resourcev1.Kind_KIND_DISK
)

const twoDocuments = `kind: Sandbox
name: web
labels: {app: web}
spec:
  restart_policy: on-failure
  termination_grace_period: 3s
  containers:
  - name: main
    image: registry.example/web:1
    args: ["a b", ""]
    limits: {memory_limit_bytes: 64MiB}
---
kind: Disk
name: data
`

func applyIn(c *fakeCluster, text string, args ...string) result {
	return cliIn(context.Background(), text, c.flags(append([]string{"apply", "-f", "-"}, args...)...)...)
}

func TestApply_CreatesThenChangesThenIsUnchanged(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0, "sandbox web created", "disk data created")
	r := c.record(kindSandbox, "web")
	main := r.GetSandbox().GetSpec().GetContainers()[0]
	if r.GetSandbox().GetSpec().GetDesired() != resourcev1.DesiredState_DESIRED_STATE_RUNNING ||
		r.GetSandbox().GetSpec().GetRestartPolicy() != resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE ||
		main.GetLimits().GetMemoryLimitBytes() != 64<<20 || len(main.GetArgs()) != 2 || r.GetMeta().GetLabels()["app"] != "web" {
		t.Errorf("record %v", r)
	}
	want(t, applyIn(c, twoDocuments), 0, "sandbox web unchanged", "disk data unchanged")
	want(t, applyIn(c, strings.Replace(twoDocuments, "web:1", "web:2", 1)), 0, "sandbox web changed", "disk data unchanged")
	if got := c.record(kindSandbox, "web").GetSandbox().GetSpec().GetContainers()[0].GetImage(); got != "registry.example/web:2" {
		t.Errorf("image %q", got)
	}
}

func TestApply_WhatGetPrintsIsAcceptedAndChangesNothing(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	for _, kind := range []string{"sandbox", "disk"} {
		printed := cli(t, c.flags("get", kind, "-o", "yaml")...)
		want(t, printed, 0)
		want(t, applyIn(c, printed.out), 0, "unchanged")
	}
	printed := cli(t, c.flags("get", "sandbox", "web", "-o", "json")...)
	want(t, applyIn(c, printed.out), 0, "unchanged")
}

func TestApply_RefusesTheWholeBeforeAnythingIsSent(t *testing.T) {
	c := newCluster(t)
	text := strings.Replace(twoDocuments, "restart_policy: on-failure", "restartpolicy: on-failure", 1)
	text = strings.Replace(text, "args:", "arg:", 1) + "---\nkind: Sandbox\nname: Bad_Name\nspec: {containers: []}\n"
	want(t, applyIn(c, text), 2,
		`standard input:5: spec.restartpolicy: the key is unknown; the nearest known key is "restart_policy"`,
		`standard input:10: spec.containers[0].arg: the key is unknown; the nearest known key is "args"`,
		"standard input:17: name: ", "standard input:18: spec.containers: ")
	if c.creates != 0 {
		t.Errorf("%d records were made", c.creates)
	}
	want(t, applyIn(c, ""), 2, "there is no document")
	want(t, cli(t, c.flags("apply", "-f", filepath.Join(t.TempDir(), "none.yaml"))...), 2, "no such file")
	want(t, cli(t, c.flags("apply")...), 2, "no file is given")
}

func TestApply_ChangesOnTopOfAWinner(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	c.rival = func() {
		c.change(func(revision uint64) {
			r := c.records[keyOf(&resourcev1.Metadata{Kind: kindSandbox, Name: "web"})]
			r.Meta.Revision = revision
			r.GetSandbox().Spec.Hostname = "rival"
		})
	}
	want(t, applyIn(c, strings.Replace(twoDocuments, "web:1", "web:2", 1)), 0, "sandbox web changed")
	spec := c.record(kindSandbox, "web").GetSandbox().GetSpec()
	if spec.GetHostname() != "" || spec.GetContainers()[0].GetImage() != "registry.example/web:2" {
		t.Errorf("spec %v: want that of the document", spec)
	}
}

// A document that was printed before somebody else's change does not undo it.
func TestApply_OfAnOldGenerationIsAConflict(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	printed := cli(t, c.flags("get", "sandbox", "web", "-o", "yaml")...).out
	edited := strings.Replace(printed, "web:1", "web:2", 1)
	if edited == printed || !strings.Contains(printed, "\ngeneration: ") {
		t.Fatalf("printed\n%s", printed)
	}
	c.rival = func() { // between the question and the change
		c.change(func(revision uint64) {
			r := c.records[keyOf(&resourcev1.Metadata{Kind: kindSandbox, Name: "web"})]
			r.Meta.Revision, r.Meta.Generation = revision, r.Meta.Generation+1
			r.GetSandbox().Spec.Hostname = "rival"
		})
	}
	for range 2 { // during it, and after it
		want(t, applyIn(c, edited), 4, "was changed meanwhile", "remove generation")
	}
	if got := c.record(kindSandbox, "web").GetSandbox().GetSpec().GetHostname(); got != "rival" {
		t.Errorf("hostname %q, want the rival's", got)
	}
	want(t, applyIn(c, strings.Replace(edited, "\ngeneration: ", "\nrevision: ", 1)), 2, "given in line")
	want(t, applyIn(c, strings.Replace(edited, "\ngeneration: ", "\ngeneration: x", 1)), 2, "generation: the value is no generation")
}

func TestStop_KeepsWhatAWinnerChanged(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	c.rival = func() {
		c.change(func(revision uint64) {
			r := c.records[keyOf(&resourcev1.Metadata{Kind: kindSandbox, Name: "web"})]
			r.Meta.Revision = revision
			r.GetSandbox().Spec.Hostname = "rival"
		})
	}
	want(t, cli(t, c.flags("stop", "web")...), 0)
	spec := c.record(kindSandbox, "web").GetSandbox().GetSpec()
	if spec.GetHostname() != "rival" || spec.GetDesired() != resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		t.Errorf("spec %v: want both changes", spec)
	}
}

func TestApply_AnotherUIDIsAConflict(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	want(t, applyIn(c, "kind: Disk\nname: data\nuid: 01ARZ3NDEKTSV4RRFFQ69G5FAV\n"), 4, "has uid")
}

func TestCluster_RunPsGetDelete(t *testing.T) {
	c := newCluster(t)
	want(t, cli(t, c.flags("run", "-d", "--name", "web", "-l", "app=web", "img")...), 0)
	uid := c.record(kindSandbox, "web").GetMeta().GetUid()
	want(t, cli(t, c.flags("ps")...), 0, "web", uid, "node1", "RUNNING")
	want(t, cli(t, c.flags("get", "sandboxes", strings.ToLower(uid[:22]), "-o", "name")...), 0, uid)
	want(t, cli(t, c.flags("get", "sandbox", "nothing")...), 3, "not found", "try: staddle get sandbox")
	want(t, cli(t, c.flags("run", "-d", "--name", "web", "img")...), 4, "try: another name")
	want(t, cli(t, c.flags("delete", "sandbox", "web")...), 0, "sandbox web deleted")
	want(t, cli(t, c.flags("rm", "web")...), 3)
	want(t, cli(t, c.flags("delete", "disklease", "x")...), 2, "try: staddle rm")
}

func TestCluster_Disks(t *testing.T) {
	c := newCluster(t)
	want(t, cli(t, c.flags("disk", "create", "data", "--node", "node1")...), 0, "disk data created")
	if got := c.record(kindDisk, "data").GetDisk().GetSpec().GetNode(); got != "node1" {
		t.Errorf("node %q", got)
	}
	want(t, cli(t, c.flags("disk", "ls")...), 0, "NAME", "data", "node1")
	want(t, cli(t, c.flags("disk", "rm", "data")...), 0, "disk data deleted")
	want(t, cli(t, c.flags("node", "ls")...), 0, "SESSION")
}

func TestCluster_WrongIdentityIsToldApart(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	want(t, cli(t, "--coordinator", c.address, "--ca", other.ca, "--cert", c.cert, "--key", c.key, "ps"), 6, "not to be trusted", "--ca")
	want(t, cli(t, "--coordinator", c.address, "--ca", c.ca, "--cert", other.cert, "--key", other.key, "ps"), 6, "does not take the certificate", "--cert")
	want(t, cli(t, "--coordinator", "127.0.0.1:1", "--ca", c.ca, "--cert", c.cert, "--key", c.key, "ps"), 5, "connection refused")
	want(t, cli(t, "--coordinator", c.address, "--ca", c.ca+"x", "--cert", c.cert, "--key", c.key, "ps"), 5, "does not exist", "try: ")
	if err := os.WriteFile(c.ca, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, cli(t, c.flags("ps")...), 2, "no certificate in it")
}
