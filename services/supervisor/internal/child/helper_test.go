package child

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/config"
)

// SUP-7: helpers of a component of ours end with it; those of a foreign program,
// such as the shims of containers, never do.
func TestRunner_SUP7_HelpersEndAndShimsDoNot(t *testing.T) {
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few small files
	base, err := CgroupBase(config.Paths{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	spec := func(name string, foreign bool) Spec {
		script := "setsid sleep 1000 & echo $! > " + filepath.Join(dir, name) + "; wait"
		return Spec{Name: name, Command: []string{"/bin/sh", "-c", script}, Foreign: foreign}
	}
	exits := make(chan Exit, 4)
	r := New(Config{
		Specs: []Spec{spec("ours", false), spec("foreign", true)}, Cgroup: base,
		RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "logs"),
	}, Deps{Log: slog.New(slog.DiscardHandler), Spawner: serving(t), Exited: func(e Exit) { exits <- e }})
	running(t, r)
	for _, end := range []func(string, int) error{r.Terminate, r.Kill} {
		for _, name := range []string{"ours", "foreign"} {
			pid, err := r.Start(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			helper := written(t, filepath.Join(dir, name))
			if err := end(name, pid); err != nil {
				t.Error(err)
			}
			if e := <-exits; e.Name != name || e.PID != pid {
				t.Errorf("got the end of %v, want that of %s", e, name)
			}
			if lives := unix.Kill(helper, 0) == nil && !dead(helper); lives != (name == "foreign") {
				t.Errorf("helper of %s lives: %t", name, lives)
			}
			if name == "foreign" {
				if err := unix.Kill(helper, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// dead reports whether a process has ended and was not reaped yet.
func dead(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(text), ") Z ")
}

// running runs a Runner until the test ends.
func running(t *testing.T, r *Runner) {
	t.Helper()
	ready, done := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { done <- r.Run(ctx, func() { close(ready) }) }() // waited for at the end of the test
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// written waits for a number in a file, and removes it.
func written(t *testing.T, path string) int {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(path)
		if pid, wrong := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && wrong == nil && strings.HasSuffix(string(text), "\n") {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			return pid
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for a number in %s, last seen %q", path, text)
		}
		<-tick.C
	}
}
