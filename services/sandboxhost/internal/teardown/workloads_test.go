package teardown

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/host"
)

func TestIsMain(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nNSpid:\t77\t1\nNSpgid:\t77\t1\n": true, "NSpid:\t77\t12\n": false, "NSpid:\t1\n": false, "NSpid:\t77\n": false, "": false,
	} {
		if got := isMain(status); got != want {
			t.Errorf("%q: got %t, want %t", status, got, want)
		}
	}
}

// note writes down how long a sandbox may take, as a host would have.
func note(t *testing.T, d down, graces map[id.Sandbox]time.Duration) {
	t.Helper()
	folder := d.cfg.Paths.Var("sandboxhost")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	j, _, err := journal.Open(journal.Options{Path: filepath.Join(folder, host.JournalFile), Kind: host.JournalKind, Version: host.JournalVersion})
	if err != nil {
		t.Fatal(err)
	}
	err = j.Update(func(tx journal.Tx) error {
		var errs []error
		for uid, grace := range graces {
			r := &sandboxhostv1.SandboxRecord{Wish: &sandboxhostv1.Wish{Spec: &resourcev1.SandboxSpec{
				TerminationGracePeriod: durationpb.New(grace), Containers: []*resourcev1.ContainerSpec{{Name: "web"}},
			}}}
			errs = append(errs, journal.PutProto(tx, "sandboxes", string(uid), r))
		}
		return errors.Join(errs...)
	})
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
}

// tidier is a workload that needs a second to write down that it has ended in order.
func tidier(t *testing.T, d down, uid id.Sandbox) (cmd *exec.Cmd, done string) {
	t.Helper()
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	done = filepath.Join(dir, "done")
	cmd = enter(t, d, exec.Command("sh", "-c", `trap 'sleep 1; touch "$2"; exit 0' TERM; touch "$1"; while :; do sleep 0.05; done`, "sh", up, done),
		uid.Lower()+"/web")
	tick := time.NewTicker(10 * time.Millisecond) // a real process tells nobody
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		if _, err := os.Stat(up); err == nil {
			return cmd, done
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("the workload has not begun after 30 s")
		}
	}
}

// Each sandbox ends within its own grace period, also when one beside it has less.
func TestDown_GivesEachSandboxItsOwnGrace(t *testing.T) {
	const patient, hasty = id.Sandbox("01K00000000000000000000001"), id.Sandbox("01K00000000000000000000002")
	d := newDown(t)
	d.cfg.Limit = time.Minute
	note(t, d, map[id.Sandbox]time.Duration{patient: 30 * time.Second, hasty: 100 * time.Millisecond})
	long, longDone := tidier(t, d, patient)
	short, shortDone := tidier(t, d, hasty)
	began := time.Now()
	if err := d.endWorkloads(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s, want about a second: nobody needs more", took)
	}
	if err := long.Wait(); err != nil {
		t.Errorf("the one with time: %v, want it ended by itself", err)
	}
	if err := short.Wait(); err == nil {
		t.Error("the one without time ended by itself")
	}
	if _, err := os.Stat(longDone); err != nil {
		t.Errorf("the one with time did not finish: %v", err)
	}
	if _, err := os.Stat(shortDone); err == nil {
		t.Error("the one without time finished")
	}
}
