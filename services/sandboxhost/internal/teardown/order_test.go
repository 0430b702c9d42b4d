package teardown

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/host"
)

// writer is a workload that notes in a file which signal ended it, a while after it came.
func writer(t *testing.T, d down, uid id.Sandbox, name, order string) *exec.Cmd {
	t.Helper()
	up := filepath.Join(t.TempDir(), "up")
	script := `for s in TERM QUIT USR1; do trap "sleep 0.3; echo $1 $s >>$3; exit 0" $s; done; touch "$2"; while :; do sleep 0.05; done`
	cmd := enter(t, d, exec.Command("sh", "-c", script, "sh", name, up, order), uid.Lower()+"/"+name)
	tick := time.NewTicker(10 * time.Millisecond) // a real process tells nobody
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		if _, err := os.Stat(up); err == nil {
			return cmd
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("the workload has not begun after 30 s")
		}
	}
}

// The containers of a sandbox get the signals that they ask for, the last of the spec first,
// each after the end of the one after it, and what no container has comes at the end.
func TestDown_HonoursStopSignalAndOrder(t *testing.T) {
	const uid = id.Sandbox("01K00000000000000000000003")
	d := newDown(t)
	d.cfg.Limit = time.Minute
	order := filepath.Join(t.TempDir(), "order")
	folder := d.cfg.Paths.Var("sandboxhost")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	j, _, err := journal.Open(journal.Options{Path: filepath.Join(folder, host.JournalFile), Kind: host.JournalKind, Version: host.JournalVersion})
	if err != nil {
		t.Fatal(err)
	}
	r := &sandboxhostv1.SandboxRecord{
		Wish:        &sandboxhostv1.Wish{Spec: &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{Name: "db"}, {Name: "web"}}}},
		StopSignals: map[string]uint32{"db": uint32(syscall.SIGQUIT), "web": uint32(syscall.SIGUSR1)},
	}
	err = j.Update(func(tx journal.Tx) error { return journal.PutProto(tx, "sandboxes", string(uid), r) })
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stray", "db", "web"} {
		writer(t, d, uid, name, order)
	}
	if err := d.endWorkloads(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(order)
	if got := strings.Fields(string(raw)); err != nil || strings.Join(got, " ") != "web USR1 db QUIT stray TERM" {
		t.Errorf("got %q, %v, want web by USR1, then db by QUIT, then the stray one by TERM", got, err)
	}
}
