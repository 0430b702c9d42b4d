package containerd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/secret"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// withInit builds the first process of containers.
func (n *node) withInit(t *testing.T) {
	t.Helper()
	n.engine.cfg.Init = filepath.Join(t.TempDir(), "staddle-init")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", n.engine.cfg.Init,
		"staddle.internal/services/sandboxhost/cmd/staddle-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build staddle-init: %v\n%s", err, out)
	}
	for dir := filepath.Dir(n.engine.cfg.Init); dir != "/"; dir = filepath.Dir(dir) { // every user of a container executes it
		must(t, os.Chmod(dir, 0o755|os.ModeSticky))
		if dir == os.TempDir() {
			must(t, os.Chmod(dir, 0o777|os.ModeSticky))
			break
		}
	}
}

// keep puts values where the engine finds them.
func (n *node) keep(t *testing.T, a engine.Attempt, data ...*resourcev1.SecretData) {
	t.Helper()
	must(t, n.engine.Secrets().Keep(uidOf(a), secret.ReferencesOf(a.Wish.GetSpec()), data))
}

func fromSecret(variable, name, key string) *resourcev1.EnvironmentVariable {
	return &resourcev1.EnvironmentVariable{Name: variable, Secret: &resourcev1.SecretReference{Name: name, Key: key}}
}

func TestEngine_SecretsInside(t *testing.T) {
	n := newNode(t)
	n.withInit(t)
	value := "two\nlines = \"$x\" "
	one := trying("read:/secrets/password", "stat:/secrets/password", "write:/secrets/password", "write:/secrets/new", "read:/chosen/it", "read:/chosen/user",
		"read:/proc/self/environ", "read:/proc/1/environ")
	one.User = "1234"
	one.Env = []*resourcev1.EnvironmentVariable{{Name: "PLAIN", Value: "p"}, fromSecret("PASSWORD", "db", "password"), fromSecret("EMPTY", "db", "empty")}
	one.Secrets = []*resourcev1.SecretMount{
		{Secret: "db", Path: "/secrets"},
		{Secret: "db", Path: "/chosen", Files: []*resourcev1.SecretFile{{Key: "user", File: "it"}}, Mode: "0440"},
	}
	a := attempt(t, pushed(t), one)
	a.Wish.Manager = "cluster"
	n.mustFail(t, a, fault.Unavailable, "not fetched yet")
	n.keep(t, a, &resourcev1.SecretData{Name: "db", Entries: []*resourcev1.SecretEntry{
		{Key: "empty"}, {Key: "password", Value: []byte(value)}, {Key: "user", Value: []byte("me")},
	}})
	lines := n.said(t, a)
	wantLines(t, lines, `read:/secrets/password="two\nlines = \"$x\" "`, "stat:/secrets/password=mode=400 uid=1234", "write:/secrets/password=error",
		"write:/secrets/new=error", `read:/chosen/it="me"`, "read:/chosen/user=error")
	own := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "read:/proc/self/environ") })
	if own < 0 || !strings.Contains(lines[own], `PASSWORD=two\nlines = \"$x\" \x00`) || !strings.Contains(lines[own], `EMPTY=\x00`) || !strings.Contains(lines[own], `PLAIN=p\x00`) {
		t.Errorf("the environment is not whole in %q", lines)
	}
	key := engine.ContainerID(uidOf(a), "a", 1)
	n.nothingKept(t, key, "two\\nlines")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it goes on after it has said what it read
	res, err := n.engine.Exec(ctx, engine.Command{ContainerID: key, ID: "check", Args: []string{testimage.Program, "print-exit", "1"}})
	cancel()
	if err != nil || res.Code != 0 {
		t.Errorf("a command beside: got %+v, %v", res, err)
	}
	if _, err := n.engine.Exec(t.Context(), engine.Command{ContainerID: key, ID: "absent", Args: []string{"/no/such"}}); !errors.Is(err, fault.NotFound) {
		t.Errorf("a command that is not there: got %v, want not found", err)
	}
	o, err := n.engine.Observe(t.Context(), uidOf(a))
	if err != nil || !o.Logs {
		t.Errorf("got %+v, %v, want the values to be seen", o, err)
	}
	n.clear(t, uidOf(a))
	if there, err := n.engine.Secrets().Kept(uidOf(a)); there || err != nil {
		t.Errorf("the values are left: %v, %v", there, err)
	}
}

// mustFail has an attempt fail when its first container is made.
func (n *node) mustFail(t *testing.T, a engine.Attempt, kind fault.Kind, says string) {
	t.Helper()
	for _, step := range []engine.Step{engine.StepImages, engine.StepNamespaces, engine.StepNetwork} {
		must(t, n.engine.Do(t.Context(), a, engine.Action{Step: step}))
	}
	err := n.engine.Do(t.Context(), a, engine.Action{Step: engine.StepCreate, Container: "a"})
	if fault.KindOf(err) != kind || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s with %q", err, kind, says)
	}
}

// nothingKept checks that the specification that the runtime keeps does not have a value.
func (n *node) nothingKept(t *testing.T, containerID, value string) {
	t.Helper()
	record, err := n.engine.client.ContainerService().Get(t.Context(), containerID)
	must(t, err)
	for name, raw := range map[string][]byte{"spec": record.Spec.GetValue(), "note": record.Extensions[extensionNote].GetValue()} {
		if strings.Contains(string(raw), value) {
			t.Errorf("the %s of the container has the value", name)
		}
	}
}

func TestEngine_SecretThatIsNoText(t *testing.T) {
	n := newNode(t)
	n.withInit(t)
	one := prog("sleep")
	one.Env = []*resourcev1.EnvironmentVariable{fromSecret("X", "db", "blob")}
	a := attempt(t, pushed(t), one)
	n.keep(t, a, &resourcev1.SecretData{Name: "db", Entries: []*resourcev1.SecretEntry{{Key: "blob", Value: []byte("a\x00b")}}})
	n.mustFail(t, a, fault.Invalid, "zero byte")
	n.clear(t, uidOf(a))
}

// The first process hands signals on, ends as the program does, and takes in the ends
// of what commands that ran out of time have left. (EXE-7)
func TestEngine_InitProcess(t *testing.T) {
	n := newNode(t)
	n.withInit(t)
	ref := pushed(t)
	codes := map[string]uint32{"exit": 7, "sleep": 0, "ignore-term": 137}
	for mode, want := range codes {
		one := prog(mode, "7")
		one.InitProcess = true
		a := attempt(t, ref, one)
		n.run(t, a)
		if mode != "exit" {
			n.await(t, uidOf(a), "two processes", func(engine.Observed) bool { return n.alive(t, n.engine.group(uidOf(a).Lower(), "a")) == 2 })
			sig := syscall.SIGTERM
			if mode == "ignore-term" {
				sig = syscall.SIGKILL
			}
			n.signalProgram(t, a, sig)
		}
		if got := n.awaitExit(t, uidOf(a)); got.Code != want || got.Unknown {
			t.Errorf("%s: ended as %+v, want code %d", mode, got, want)
		}
		n.clear(t, uidOf(a))
	}
	one := prog("sleep")
	one.InitProcess = true
	a := attempt(t, ref, one)
	n.run(t, a)
	group, key := n.engine.group(uidOf(a).Lower(), "a"), engine.ContainerID(uidOf(a), "a", 1)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		_, err := n.engine.Exec(ctx, engine.Command{ContainerID: key, ID: "check", Args: []string{testimage.Program, "family"}})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want a deadline that is exceeded", err)
		}
	}
	n.await(t, uidOf(a), "no zombies", func(engine.Observed) bool {
		pids, err := n.engine.cgroups.Processes(group)
		return err == nil && len(pids) == 2
	})
	n.clear(t, uidOf(a))
}

// signalProgram sends a signal: SIGTERM to the first process, which hands it on, SIGKILL
// to the program itself.
func (n *node) signalProgram(t *testing.T, a engine.Attempt, sig syscall.Signal) {
	t.Helper()
	if sig == syscall.SIGTERM {
		must(t, n.engine.signal(t.Context(), engine.ContainerID(uidOf(a), "a", 1), sig))
		return
	}
	o, err := n.engine.Observe(t.Context(), uidOf(a))
	must(t, err)
	pids, err := n.engine.cgroups.Processes(n.engine.group(uidOf(a).Lower(), "a"))
	must(t, err)
	for _, pid := range pids {
		if pid != int(o.Containers[0].PID) {
			must(t, syscall.Kill(pid, sig))
		}
	}
}
