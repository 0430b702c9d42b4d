package command_test

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	kitrun "staddle.internal/kit/run"

	"staddle.internal/cli/internal/command"
)

// watching runs a command that goes on until it is interrupted by the returned
// function, which gives its exit code.
func watching(t *testing.T, out *syncBuffer, args ...string) func() int {
	t.Helper()
	ctx, interrupt := context.WithCancelCause(context.Background())
	done := make(chan int, 1)
	go func() { done <- command.Run(ctx, args, strings.NewReader(""), out, out) }()
	return func() int {
		interrupt(&kitrun.SignalError{Signal: syscall.SIGINT})
		return <-done
	}
}

func TestPs_WatchShowsWhatIsThereThenEachChangeOnce(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result { return cli(t, append([]string{"--node-socket", h.path}, args...)...) }
	want(t, node("run", "-d", "--name", "web", "serve"), 0)
	var out syncBuffer
	end := watching(t, &out, "--node-socket", h.path, "ps", "--watch")
	lines := func(n int) {
		t.Helper()
		eventually(t, "lines", func() (bool, string) { return strings.Count(out.String(), "\n") == n, out.String() })
	}
	lines(2)
	h.change(func() { h.boxes[h.uids()[0]].Status.Seq++ }) // in no column
	want(t, node("stop", "web"), 0)
	lines(3)
	want(t, node("rm", "web"), 0)
	lines(5)
	if code := end(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	for i, word := range []string{"PHASE", "RUNNING", "STOPPED", "REMOVED", "GONE"} {
		if line := strings.Split(out.String(), "\n")[i]; !strings.Contains(line, word) {
			t.Errorf("line %d is %q, want %s", i, line, word)
		}
	}
}

func TestGet_WatchAsJSONNamesEachEvent(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	var out syncBuffer
	end := watching(t, &out, c.flags("get", "disk", "--watch", "-o", "json")...)
	eventually(t, "first line", func() (bool, string) { return strings.Contains(out.String(), "\n"), out.String() })
	want(t, cli(t, c.flags("disk", "rm", "data")...), 0)
	eventually(t, "second line", func() (bool, string) { return strings.Count(out.String(), "\n") == 2, out.String() })
	end()
	var events []string
	for line := range strings.Lines(out.String()) {
		var e struct {
			Event  string
			Record struct{ Kind, Name string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		events = append(events, e.Event+" "+e.Record.Kind+" "+e.Record.Name)
	}
	if got := strings.Join(events, ", "); got != "present Disk data, gone Disk data" {
		t.Errorf("events %q", got)
	}
}
