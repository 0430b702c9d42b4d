package child

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// talker is a Runner with one component that runs a shell script.
func talker(t *testing.T, script string) (r *Runner, size func() int64, ended <-chan Exit) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a few files
	exits := make(chan Exit, 4)
	r = New(Config{
		Specs:  []Spec{{Name: "a", Command: []string{"/bin/sh", "-c", script}}},
		RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "logs"),
	}, Deps{Log: slog.New(slog.DiscardHandler), Spawner: serving(t), Exited: func(e Exit) { exits <- e }})
	running(t, r)
	return r, func() int64 {
		var sum int64
		for _, path := range []string{outputPath(r.cfg.LogDir, "a"), olderPath(r.cfg.LogDir, "a")} {
			if info, err := os.Stat(path); err == nil {
				sum += info.Size()
			}
		}
		return sum
	}, exits
}

// A component that writes as fast as it can does not fill the disk meanwhile.
func TestBoundOutputs_WhileAComponentWritesAsFastAsItCan(t *testing.T) {
	r, size, ended := talker(t, "exec head -c 512M /dev/zero")
	if _, err := r.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	most, over := int64(0), time.Now().Add(60*time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for writes := true; writes; most = max(most, size()) {
		select {
		case <-ended:
			writes = false
		case <-tick.C:
		}
		if time.Now().After(over) {
			t.Fatalf("it still writes; %d MiB are kept", size()>>20)
		}
	}
	t.Logf("at most %d MiB at a time", most>>20)
	if most > 128<<20 { // a quarter of what was written
		t.Errorf("got %d MiB of output at a time, want it bounded", most>>20)
	}
	for size() > (1+maxOlder)*maxOutput+1<<20 {
		if time.Now().After(over) {
			t.Fatalf("got %d bytes kept", size())
		}
		<-tick.C
	}
}

// The folder may be lost under it.
func TestBoundOutputs_GoesOnWhenItsFolderIsMadeAnew(t *testing.T) {
	r, size, ended := talker(t, "exec head -c 64M /dev/zero")
	for range 2 {
		if _, err := r.Start(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		over := time.Now().Add(20 * time.Second)
		for seen := int64(0); seen <= maxOutput || size() > (1+maxOlder)*maxOutput; seen = max(seen, size()) {
			if time.Now().After(over) {
				t.Fatalf("got %d bytes of output, want it written and bounded", size())
			}
			<-time.After(time.Millisecond)
		}
		<-ended
		lost := r.cfg.LogDir + ".lost"
		if err := errors.Join(os.Rename(r.cfg.LogDir, lost), os.RemoveAll(lost), os.Mkdir(r.cfg.LogDir, 0o750)); err != nil {
			t.Fatal(err)
		}
	}
}
