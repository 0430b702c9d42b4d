//go:build systemd

package systemd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tooLong is what a unit takes that ends by nothing but the time-out that all units have.
const tooLong = 90 * time.Second

// farewell is what a sandbox wrote down of its end.
type farewell struct{ asked, ended time.Time }

// runFarewell makes a sandbox run that needs some time to end, and writes on a disk of
// its own when it was asked to and when it had its time.
func (n node) runFarewell(name string, grace, needs time.Duration) {
	n.Helper()
	if n.run("staddle", "get", "disk", name).code != 0 {
		n.ok("staddle", "disk", "create", name)
		n.Cleanup(func() {
			n.eventually("disk "+name+" to be removed", func() (bool, string) { // once its sandbox is
				r := n.run("staddle", "disk", "rm", name)
				return r.code == 0 || n.boot == nil, r.text
			})
		})
	}
	n.run("staddle", "rm", name)
	n.ok("staddle", "run", "--detach", "--name", name, "--grace", grace.String(), "--disk", name+":/data", probeImage, "--",
		"farewell", "/data/"+name, needs.String())
	n.Cleanup(func() { n.ok("staddle", "rm", name) })
	n.waitRunning(name)
	n.eventually(name+" to be there", func() (bool, string) {
		said := n.run("staddle", "logs", name).text
		return strings.Contains(said, "here"), said
	})
}

// farewellOf reads what a sandbox wrote, also while the machine is off, and takes it
// away.
func (n node) farewellOf(name string) (f farewell) {
	n.Helper()
	var found []string
	err := filepath.WalkDir(n.path("/var/lib/staddle/storage"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == name && e.Type().IsRegular() {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) != 1 {
		n.Errorf("%s wrote %v (%v), want one file", name, found, err)
		return f
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		n.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		word, at, _ := strings.Cut(strings.TrimSpace(line), " ")
		ms, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			n.Errorf("%s wrote %q: %v", name, text, err)
		}
		switch word {
		case "asked":
			f.asked = time.UnixMilli(ms)
		case "ended":
			f.ended = time.UnixMilli(ms)
		}
	}
	if err := os.Remove(found[0]); err != nil {
		n.Error(err)
	}
	return f
}

// SYS-2: a shutdown of the machine gives every sandbox the time that it asks for, and
// no more, also when processes of the node are gone or stuck. Then it reboots, and all
// run again.
func TestNode_SYS2_ShutdownGivesEachItsGrace(t *testing.T) {
	for _, c := range []struct {
		name  string
		harm  func(n node)
		order bool // presence, sandboxhost and containerd are there until the sandboxes have ended
	}{
		{"in order", func(node) {}, true},
		{"without sandboxhost", func(n node) { n.ok("systemctl", "stop", "staddle-sandboxhost.socket") }, false},
		{"with a stuck sandboxhost", func(n node) { n.ok("systemctl", "kill", "--signal=STOP", unit("sandboxhost")) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := ready(t)
			// More than the other's grace, less than its own; and one that never ends by itself.
			const patient, hasty, deaf = 6 * time.Second, time.Second, 3 * time.Second
			n.runFarewell("patient", 30*time.Second, patient)
			n.runFarewell("hasty", 2*time.Second, hasty)
			n.ok("staddle", "run", "--detach", "--name", "deaf", "--grace", deaf.String(), probeImage, "--", "deaf")
			t.Cleanup(func() { n.ok("staddle", "rm", "deaf") })
			n.waitRunning("deaf")
			attempts := map[string]int{"patient": n.attempt("patient"), "hasty": n.attempt("hasty"), "deaf": n.attempt("deaf")}
			c.harm(n)
			began := time.Now()
			n.run("systemctl", "reboot") // its own end is not told
			if err := n.ended(2 * time.Minute); err != nil {
				t.Fatal(errors.Join(err, n.cut()))
			}
			took := time.Since(began)
			if took >= tooLong {
				t.Errorf("the shutdown took %s, want less than %s", took, tooLong)
			}
			if left := n.workloads(); len(left) > 0 {
				t.Fatalf("left are processes %v", left)
			}
			for name, needs := range map[string]time.Duration{"patient": patient, "hasty": hasty} {
				if f := n.farewellOf(name); f.asked.IsZero() || f.ended.Sub(f.asked) < needs {
					t.Errorf("%s was asked to end at %s and had its time at %s, want %s for it", name, f.asked, f.ended, needs)
				}
			}
			if err := n.on(); err != nil {
				t.Fatal(err)
			}
			n.waitReady() // the target is enabled: nobody starts it
			for name, before := range attempts {
				n.waitRunningIn(name, before+1)
			}
			if c.order {
				n.stoppedInOrder(began)
			}
			if failed := n.ok("systemctl", "list-units", "--failed", "--plain", "--no-legend", "staddle*"); failed != "" {
				t.Errorf("failed are:\n%s", failed)
			}
			t.Logf("the shutdown took %s", took)
		})
	}
}

// waitRunningIn waits until a sandbox runs in an attempt, and fails if that is passed.
func (n node) waitRunningIn(name string, attempt int) {
	n.Helper()
	n.eventually(fmt.Sprintf("sandbox %s to run in attempt %d", name, attempt), func() (bool, string) {
		line := n.sandbox(name)
		if line == "" {
			return false, "it is not listed"
		}
		now := n.attempt(name)
		if now > attempt {
			n.Fatalf("%s is in attempt %d, want %d", name, now, attempt)
		}
		return now == attempt && strings.Contains(line, "RUNNING"), line
	})
}

// stoppedInOrder reads in the journal from a time on what was stopped after what.
func (n node) stoppedInOrder(since time.Time) {
	n.Helper()
	journal := n.ok("journalctl", "--no-pager", "--boot=all", "--output=cat", fmt.Sprintf("--since=@%d", since.Unix()))
	last := 0
	for _, said := range []string{
		"Stopping staddle-drain.service", "DRAIN_STEP_STOPPING", "DRAIN_STEP_DONE", "session ended", "Stopped staddle-drain.service",
		"Stopped staddle-presence.service", "Stopped staddle-sandbox-agent.service", "Stopped staddle-sandboxhost.service",
		"Stopped staddle-storage.service", "Stopped staddle-workloads.service",
	} {
		at := strings.Index(journal[last:], said)
		if at < 0 {
			n.Errorf("%q is not said, or not after the one before; the journal:\n%s", said, journal)
			return
		}
		last += at
	}
	if strings.Contains(journal, "workloads ending") {
		n.Errorf("some were left for the end:\n%s", journal)
	}
}

// SYS-2: workloads end in order when their unit is stopped, alone or with the node,
// and run again when all is started again.
func TestNode_SYS2_WorkloadsEndWithTheirUnit(t *testing.T) {
	n := ready(t)
	n.runSandbox("counter", "count", "20ms")
	for _, c := range [][]string{{"staddle-workloads.service"}, {"staddle-workloads.service", "staddle.target"}} {
		before := n.attempt("counter")
		began := time.Now()
		n.ok(append([]string{"systemctl", "stop"}, c...)...)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("to stop %v took %s, and one sandbox that listens was there", c, took)
		}
		if left := n.workloads(); len(left) > 0 {
			t.Errorf("after the stop of %v left are processes %v", c, left)
		}
		for _, u := range []string{"staddle-workloads.service", "staddle-drain.service"} {
			if result := n.show(u, "Result"); result != "success" {
				t.Errorf("%s ended with %s", u, result)
			}
		}
		if pid := n.pid("sandboxhost"); len(c) == 1 && pid == "0" {
			t.Error("sandboxhost was stopped with the workloads")
		}
		n.ok(append([]string{"systemctl", "start"}, c...)...)
		n.waitReady()
		n.waitRunningIn("counter", before+1)
		// It was ended on request, which is no crash.
		if said := n.ok("staddle", "get", "sandbox", "counter", "-o", "yaml"); strings.Contains(said, "unknown: true") {
			t.Errorf("its end is not known:\n%s", said)
		}
	}
	if got := fmt.Sprint(n.show("staddle-drain.service", "ActiveState"), n.show("staddle-workloads.service", "ActiveState")); got != "activeactive" {
		t.Errorf("the two units are %s", got)
	}
}
