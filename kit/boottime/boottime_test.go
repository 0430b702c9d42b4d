package boottime_test

import (
	"os"
	"strings"
	"testing"

	"staddle.internal/kit/boottime"
)

func TestID(t *testing.T) {
	t.Setenv(boottime.EnvID, "")
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	got, err := boottime.ID()
	if want := strings.TrimSpace(string(text)); err != nil || got != want {
		t.Errorf("ID() = %q, %v, want %q", got, err, want)
	}
	t.Setenv(boottime.EnvID, "another-life")
	if got, err := boottime.ID(); err != nil || got != "another-life" {
		t.Errorf("ID() = %q, %v, want the one of the environment", got, err)
	}
}

func TestNow_OnlyGrows(t *testing.T) {
	last := boottime.Now()
	if last <= 0 {
		t.Fatalf("Now() = %s", last)
	}
	for range 1000 {
		now := boottime.Now()
		if now < last {
			t.Fatalf("Now() went from %s to %s", last, now)
		}
		last = now
	}
}
