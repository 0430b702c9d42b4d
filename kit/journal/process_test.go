package journal_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/journal"
)

// envChild makes the test binary play another process; its value is the path.
const envChild = "JOURNAL_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(envChild); path != "" {
		writeForEver(path)
	}
	os.Exit(m.Run())
}

// writeForEver writes from four goroutines, and tells each note once it is
// durable. Every note comes with its twin: never one without the other.
func writeForEver(path string) {
	j, rec, err := journal.Open(options(path))
	if err != nil {
		fmt.Fprintln(os.Stdout, "error:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "opened", rec.SetAside)
	for w := range 4 {
		go func() { // ends with the process
			for i := 0; ; i++ {
				key := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				err := j.Update(func(tx journal.Tx) error {
					return errors.Join(tx.Put("note", key, bytes.Repeat([]byte("x"), i%3000)), tx.Put("twin", key, nil))
				})
				if err != nil {
					fmt.Fprintln(os.Stdout, "error:", err)
					os.Exit(1)
				}
				fmt.Fprintln(os.Stdout, "durable", key)
			}
		}()
	}
	select {}
}

// child starts a writer and returns its lines; it is killed with the test.
func child(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "opened " {
		t.Fatalf("child said %q", lines.Text())
	}
	return cmd, lines
}

func TestJournal_KillLosesNothingThatWasDurable(t *testing.T) {
	path := newPath(t)
	durable := make(map[string]bool)
	for round := range 8 {
		cmd, lines := child(t, path)
		for kill := 1 + rand.IntN(200); lines.Scan(); kill-- {
			word, key, _ := strings.Cut(lines.Text(), " ")
			if word != "durable" {
				t.Fatalf("child said %q", lines.Text())
			}
			durable[key] = true
			if kill == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("child ended by itself: %v", err)
		}
		j, rec := open(t, options(path))
		if rec.Fresh || rec.SetAside != "" {
			t.Fatalf("round %d: recovery is %+v", round, rec)
		}
		notes, twins := names(list(t, j, "note")), names(list(t, j, "twin"))
		for key := range durable {
			if !notes[key] {
				t.Errorf("round %d: note %s is lost", round, key)
			}
		}
		for key := range notes {
			if !twins[key] {
				t.Errorf("round %d: note %s has no twin", round, key)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(durable) < 8 {
		t.Fatalf("only %d notes were ever durable", len(durable))
	}
}

func names(lines []string) map[string]bool {
	set := make(map[string]bool)
	for _, l := range lines {
		key, _, _ := strings.Cut(l, "=")
		set[key] = true
	}
	return set
}

func TestOpen_NeverTwoAtOnce(t *testing.T) {
	path := newPath(t)
	cmd, _ := child(t, path)
	began := time.Now()
	_, _, err := journal.Open(options(path))
	if want := fmt.Sprintf("held by process %d", cmd.Process.Pid); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), want) {
		t.Errorf("second opener got %v, want Conflict with %q", err, want)
	}
	if took := time.Since(began); took < 2*time.Second || took > 20*time.Second {
		t.Errorf("second opener waited %s, want about 2s", took)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// It waits for one that is just ending, without our waiting first.
	if _, rec := open(t, options(path)); rec.SetAside != "" {
		t.Errorf("recovery is %+v", rec)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		t.Errorf("child ended by itself: %v", err)
	}
}
