package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/id"
)

// waitLong bounds a wait for what takes milliseconds on an idle machine.
const waitLong = 30 * time.Second

func newUID() string { return string(id.NewSandbox()) }

// outputIs asks whether a container wrote exactly this.
func outputIs(t *testing.T, b *bed.Bed, uid, container string, attempt uint64, want string) func(context.Context) (bool, string) {
	return func(context.Context) (bool, string) {
		got := output(t, b, uid, container, attempt)
		return got == want, fmt.Sprintf("%q", got)
	}
}

// moreThan asks whether a counter has got further, without a gap.
func moreThan(t *testing.T, b *bed.Bed, uid, container string, n int) func(context.Context) (bool, string) {
	return func(context.Context) (bool, string) {
		now := counted(t, output(t, b, uid, container, 1))
		return now > n, strconv.Itoa(now)
	}
}

// gone asks whether a process has ended.
func gone(pid int) func(context.Context) (bool, string) {
	return func(context.Context) (bool, string) { return !bed.Alive(pid), strconv.Itoa(pid) }
}

// parent is the parent of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	ppid, err := strconv.Atoi(strings.Fields(after)[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// cutArchive is the first half of an image archive.
func cutArchive(t *testing.T) string {
	t.Helper()
	whole, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cut.tar")
	if err := os.WriteFile(path, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// seconds is a number of seconds.
func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
