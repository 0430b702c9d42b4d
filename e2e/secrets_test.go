package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// sums is a sandbox that prints the digests of a value as it sees it, twice.
func sums(name string) string {
	return fmt.Sprintf(`kind: Sandbox
name: %s
spec:
  desired: RUNNING
  restart_backoff: {initial: 100ms, cap: 1s}
  containers:
    - name: main
      image: %q
      user: "1234"
      args: [sums, PASSWORD, /secrets/password.txt]
      env: [{name: PASSWORD, secret: {name: db, key: password}}]
      secrets: [{secret: db, path: /secrets, files: [{key: password, file: password.txt}]}]
---
`, name, bed.ProbeImage)
}

// reason waits until the coordinator shows why a sandbox waits.
func reason(t *testing.T, b *bed.Bed, name, want, says string) {
	t.Helper()
	bed.Eventually(t, time.Minute, name+" waits: "+want, func(context.Context) (bool, string) {
		s := get(t, b, kindSandbox, name).GetSandbox().GetStatus()
		return s.GetReason() == want && strings.Contains(s.GetMessage(), says), s.String()
	})
}

// printed waits until an attempt of a sandbox has printed a line with both digests.
func printed(t *testing.T, b *bed.Bed, name string, attempt uint64, value string) {
	t.Helper()
	want := fmt.Sprintf("%x %[1]x\n", sha256.Sum256([]byte(value)))
	bed.Eventually(t, time.Minute, fmt.Sprintf("attempt %d of %s runs with the value", attempt, name), func(context.Context) (bool, string) {
		s := onHost(t, b, name)
		if s.GetStatus().GetAttempt() != attempt || !running(s.GetStatus()) {
			return false, s.GetStatus().String()
		}
		got := output(t, b, s.GetUid(), "main", attempt)
		return got == want, got
	})
}

func setSecret(t *testing.T, b *bed.Bed, name, key, value string) {
	t.Helper()
	if r := b.CLIWith(strings.NewReader(value), "secret", "set", name, "--from-stdin", key); r.Code != 0 {
		t.Fatalf("secret set: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A sandbox waits for its secret and says which, others do not wait; it starts when the
// secret is set, and goes on over the death of everything, and without a coordinator.
// The value is nowhere but in memory. (SEC-5)
func TestMachine_SEC5_SecretsReachTheirSandboxesAlone(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	value := "hush-" + id.New() + "\nsecond $line ='\"# "
	apply(t, b, sums("app")+sandboxYAML("other", "sleep", ""))
	reason(t, b, "app", "SECRET_NOT_FOUND", "there is no secret db")
	awaitPhase(t, b, "other", "RUNNING")
	setSecret(t, b, "db", "user", "me")
	reason(t, b, "app", "SECRET_NOT_FOUND", "secret db has no key password")
	setSecret(t, b, "db", "password", value)
	printed(t, b, "app", 1, value)

	if r := b.CLI("secret", "rm", "db"); r.Code == 0 || !strings.Contains(r.Stderr, "app") {
		t.Errorf("secret rm of one in use: code %d, %s", r.Code, r.Stderr)
	}
	if list := b.OK("secret", "ls", "-o", "yaml") + b.OK("get", "sandbox", "app", "-o", "yaml"); !strings.Contains(list, "password") || strings.Contains(list, "hush-") {
		t.Errorf("want the key and no value in:\n%s", list)
	}
	before := onHost(t, b, "app")
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitReady()
	after := await(t, b, before.GetUid(), "running", running)
	if now, was := pids(after)["main"], pids(before.GetStatus())["main"]; now != was {
		t.Errorf("its process is %d after all was killed, want %d", now, was)
	}

	b.Stop("coordinator")
	must(t, syscall.Kill(int(pids(after)["main"]), syscall.SIGKILL))
	printed(t, b, "app", 2, value)
	b.Continue("coordinator")

	nowhere(t, b, value)
	b.OK("delete", "sandbox", "app", "other")
	settled(t, b)
	if left, err := filepath.Glob(filepath.Join(b.Paths.Run(), "sandboxhost", "secrets", "*")); err != nil || len(left) > 0 {
		t.Errorf("left of removed sandboxes: %v, %v", left, err)
	}
	b.OK("secret", "rm", "db")
	nowhere(t, b, value)
}

// nowhere checks that a value is in no file of the installation, but for the memory
// that secrets are kept in, and on no command line.
func nowhere(t *testing.T, b *bed.Bed, value string) {
	t.Helper()
	mark := []byte(value)[:20]
	marks := [][]byte{mark, []byte(base64.StdEncoding.EncodeToString(mark)[:20])}
	holds := func(path string) bool {
		raw, err := os.ReadFile(path)
		return err == nil && (bytes.Contains(raw, marks[0]) || bytes.Contains(raw, marks[1]))
	}
	memory := filepath.Join(b.Paths.Run(), "sandboxhost", "secrets")
	looked := 0
	err := filepath.WalkDir(b.Paths.Root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == memory, path == filepath.Join(b.Paths.Root, "bin"):
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		looked++
		if holds(path) {
			t.Errorf("the value stands in %s", path)
		}
		return nil
	})
	lines, globErr := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || globErr != nil || looked < 50 {
		t.Errorf("looked at %d files: %v, %v", looked, err, globErr)
	}
	for _, line := range lines {
		if holds(line) {
			t.Errorf("the value stands in %s", line)
		}
	}
}

// Values go to the node of a sandbox that refers to them, and to nobody else.
func TestMachine_SecretsAreGivenToTheirNodeOnly(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	setSecret(t, b, "db", "password", "one")
	apply(t, b, sums("app")+sandboxYAML("other", "sleep", ""))
	printed(t, b, "app", 1, "one")
	ask := func(identity, sandbox string) error {
		uid := get(t, b, kindSandbox, sandbox).GetMeta().GetUid()
		stream, err := coordinatorv1.NewSecretServiceClient(b.ConnAPI(identity)).ResolveSecrets(t.Context(),
			&coordinatorv1.ResolveSecretsRequest{SandboxUid: uid, Instance: "test"})
		if err != nil {
			return err
		}
		msg, err := stream.Recv()
		if err == nil {
			t.Errorf("%s was given %v", identity, msg)
		}
		return err
	}
	for _, identity := range []string{"operator", "node", filepath.Join("nodes", "node2", "node")} {
		if err := ask(identity, "app"); !errors.Is(err, fault.Denied) {
			t.Errorf("asked as %s: got %v, want it denied", identity, err) // node: this test is not its machine
		}
	}
	_, err := coordinatorv1.NewSecretServiceClient(b.ConnAPI("node")).PutSecret(t.Context(), &coordinatorv1.PutSecretRequest{
		Name: "db", Entries: []*resourcev1.SecretEntry{{Key: "password", Value: []byte("two")}},
	})
	if !errors.Is(err, fault.Denied) {
		t.Errorf("put as a node: got %v, want it denied", err)
	}
	// A new value, encrypted anew, reaches a sandbox that is stopped and started.
	setSecret(t, b, "db", "password", "two")
	b.OK("secret", "rotate-key")
	b.OK("stop", "app")
	b.OK("start", "app")
	attempt := onHost(t, b, "app").GetStatus().GetAttempt()
	printed(t, b, "app", attempt, "two")
	b.OK("delete", "sandbox", "app", "other")
	settled(t, b)
}
