package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// openFiles runs a sandbox in which the main process, an exec probe again and again, and the
// pre-stop command note their limits of open files, and returns what each noted: "SOFT HARD".
// The programs are not in Go, whose runtime raises the soft limit itself.
func openFiles(t *testing.T, b *bed.Bed, name string, ulimits ...*resourcev1.Ulimit) map[string][]string {
	t.Helper()
	run := func(word string) *resourcev1.ExecAction {
		return &resourcev1.ExecAction{Command: []string{"/plain", "/notes/said", word}}
	}
	c := &resourcev1.ContainerSpec{
		Name: "c", Image: plainImage, Args: []string{"/notes/said", "main", "stay"}, Ulimits: ulimits, PreStop: run("pre-stop"),
		Scratch: []*resourcev1.ScratchMount{{Volume: "notes", Path: "/notes"}},
		LivenessProbe: &resourcev1.Probe{
			Check: &resourcev1.Probe_Exec{Exec: run("probe")}, Period: durationpb.New(100 * time.Millisecond), Timeout: seconds(30),
		},
	}
	s := spec(never, c)
	s.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "notes"}}
	s.TerminationGracePeriod = seconds(30)
	uid := ensure(t, b, name, s)
	file := filepath.Join(scratch(b, uid, "notes"), "said")
	const probes = 40
	bed.Eventually(t, time.Minute, "many probes", func(context.Context) (bool, string) {
		raw, err := os.ReadFile(file)
		n := strings.Count(string(raw), "probe ")
		return n >= probes, fmt.Sprintf("%d, %v", n, err)
	})
	b.OK("--node-socket", b.HostSocket(), "stop", name)
	raw, err := os.ReadFile(file)
	must(t, err)
	noted := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		word, limits, _ := strings.Cut(strings.TrimSpace(line), " ")
		noted[word] = append(noted[word], limits)
	}
	if got := await(t, b, uid, "ended", ended); got.GetAttempt() != 1 || len(noted["main"]) != 1 || len(noted["pre-stop"]) != 1 {
		t.Errorf("%s: got %v in %v", name, noted, got)
	}
	remove(t, b, uid)
	return noted
}

// TestNode_LIF7_OpenFilesAreTheSameEverywhere has 40 commands a sandbox instead of 500, and
// gives the container runtime another limit between two sandboxes instead of one from its start.
func TestNode_LIF7_OpenFilesAreTheSameEverywhere(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	importFrom(t, b, plainArchive)
	all := func(noted map[string][]string, want string) {
		t.Helper()
		for word, limits := range noted {
			for i, got := range limits {
				if got != want {
					t.Fatalf("%s, number %d: open files %s, want %s", word, i, got, want)
				}
			}
		}
	}
	all(openFiles(t, b, "explicit", &resourcev1.Ulimit{Name: "nofile", Soft: 2000, Hard: new(int64(3000))}), "2000 3000")
	unset := openFiles(t, b, "unset")
	want := unset["main"][0]
	if !strings.HasPrefix(want, "1024 ") {
		t.Errorf("open files without an explicit limit: %s, want 1024 of a hard limit that is higher", want)
	}
	all(unset, want)
	var own unix.Rlimit
	must(t, unix.Prlimit(b.PID("containerd"), unix.RLIMIT_NOFILE, nil, &own))
	must(t, unix.Prlimit(b.PID("containerd"), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: own.Max / 4, Max: own.Max}, nil))
	all(openFiles(t, b, "later"), want)
	settled(t, b)
}
