package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// oddText is what "probe odd" writes to its outputs.
func oddText() (stdout, stderr string) {
	for _, n := range []int{1, 16_383, 16_384, 16_385, 32_255, 32_256, 32_257, 65_536, 1_000_000} {
		stdout += strings.Repeat("x", n%4) + strings.Repeat("\U0001F600", n/4) + "\n"
		stderr += fmt.Sprintf("after %d\n", n)
	}
	return stdout + "carriage\rreturn\r\nzero\x00byte\n\nno end", stderr
}

// rejoined is what lines as JSON say that was written to one output.
func rejoined(t *testing.T, text, stream string) string {
	t.Helper()
	var all strings.Builder
	for line := range strings.Lines(text) {
		var o struct {
			Stream, Time, Text string
			Bytes              []byte
			Offset             int
			Partial            bool
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%.200s: %v", line, err)
		}
		if o.Stream != stream {
			continue
		}
		if o.Offset != all.Len() || o.Time == "" {
			t.Errorf("at %d of %s got offset %d and time %q", all.Len(), stream, o.Offset, o.Time)
		}
		all.WriteString(o.Text + string(o.Bytes))
		if !o.Partial {
			all.WriteByte('\n')
		}
	}
	return all.String()
}

// What was written is read back as it was, in lines too. (LOG-3)
func TestLogs_LOG3_OddLinesAreReadBackAsTheyWere(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	apply(t, b, strings.ReplaceAll(sandboxYAML("web", "odd", "  restart_policy: NEVER"), "name: web", "name: web\nlabels: {app: shop}")+
		strings.ReplaceAll(sandboxYAML("db", `say, "first\nsecond\nthird\n", ""`, "  restart_policy: NEVER"), "name: db", "name: db\nlabels: {app: shop}"))
	awaitPhase(t, b, "web", "STOPPED")
	awaitPhase(t, b, "db", "STOPPED")
	wantOut, wantErr := oddText()
	if r := b.CLI("logs", "web"); r.Code != 0 || r.Stdout != wantOut || r.Stderr != wantErr {
		t.Errorf("as bytes: code %d, %d and %d bytes, want %d and %d", r.Code, len(r.Stdout), len(r.Stderr), len(wantOut), len(wantErr))
	}
	r := b.CLI("logs", "web", "-o", "json")
	if got := rejoined(t, r.Stdout, "stdout"); got != wantOut {
		t.Errorf("joined from JSON: %d bytes, want %d", len(got), len(wantOut))
	}
	if got := rejoined(t, r.Stderr, "stderr"); got != wantErr {
		t.Errorf("joined from JSON: %q, want %q", got, wantErr)
	}
	if r := b.CLI("logs", "web", "--tail", "3", "--stream", "stdout"); r.Stdout != "zero\x00byte\n\nno end" {
		t.Errorf("the tail is %q, %s", r.Stdout, r.Stderr)
	}
	// Whole lines of both, each behind its name, though one has a last line without an end.
	r = b.CLI("logs", "-l", "app=shop", "--stream", "stdout", "--tail", "2")
	for _, line := range []string{"db/main second\n", "db/main third\n", "web/main \n", "web/main no end\n"} {
		if !strings.Contains(r.Stdout, line) || r.Code != 0 {
			t.Errorf("code %d, %q (%s) lacks %q", r.Code, r.Stdout, r.Stderr, line)
		}
	}
	begun := time.Now()
	r = b.CLI("logs", "db", "--timestamps")
	at, text, _ := strings.Cut(strings.SplitAfter(r.Stdout, "\n")[0], " ")
	if when, err := time.Parse(time.RFC3339Nano, at); err != nil || text != "first\n" || when.After(begun) || begun.Sub(when) > time.Minute {
		t.Errorf("with its time got %q, %v", r.Stdout, err)
	}
	if r := b.CLI("logs", "db", "--since", "2999-01-01T00:00:00Z"); r.Code != 0 || r.Stdout != "" {
		t.Errorf("since far from now: %d, %q", r.Code, r.Stdout)
	}
	if r := b.CLI("logs", "db", "--previous"); r.Code != 3 {
		t.Errorf("previous of the first attempt: code %d, %s", r.Code, r.Stderr)
	}
	b.OK("stop", "db")
	b.OK("start", "db")
	bed.Eventually(t, waitLong, "the second attempt has ended", func(context.Context) (bool, string) {
		r := b.CLI("logs", "db", "--attempt", "2")
		return r.Stdout == "first\nsecond\nthird\n", fmt.Sprint(r)
	})
	if r := b.CLI("logs", "db", "--previous", "-o", "json", "--tail", "1"); !strings.Contains(r.Stdout, `"attempt":1`) || !strings.Contains(r.Stdout, "third") {
		t.Errorf("previous: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// numberedFrom checks that text is numbered lines without gap or repeat, the first as
// given, and returns the number behind the last whole one.
func numberedFrom(t *testing.T, who, text string, first int) int {
	t.Helper()
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		if want := fmt.Sprintf("%099d\n", first); line != want {
			t.Fatalf("%s: got the line %q, want %q", who, line, want)
		}
		first++
	}
	return first
}

// Followers go on over many segments, the removal of the oldest and a kill of the host;
// one that is too slow is told what it missed, and goes on too. (LOG-2)
func TestLogs_LOG2_FollowGoesOnOverRotation(t *testing.T) {
	const perRound, rounds, width = 8_000, 60, 100 // 48 MB
	b, _ := alone(t, bed.Options{Node: "logs: {max_size_per_stream: 32MiB}"})
	uid := ensure(t, b, "web", spec(never, probe("main", "bursts", fmt.Sprint(perRound), "50ms", fmt.Sprint(rounds))))
	await(t, b, uid, "running", running)
	slow, err := b.Host().ReadLogs(t.Context(), &sandboxhostv1.ReadLogsRequest{Uid: uid, Attempt: 1, Follow: true})
	must(t, err)
	first, err := slow.Recv() // and nothing more for now
	must(t, err)
	fast := b.Begin("--node-socket", b.HostSocket(), "logs", "-f", "web")
	other := b.Begin("--node-socket", b.HostSocket(), "logs", "-f", "web")
	far := func(r *bed.Running, n int) {
		t.Helper()
		bed.Eventually(t, time.Minute, fmt.Sprintf("%d lines", n), func(context.Context) (bool, string) {
			got := r.Said() / width // a copy of all of it, again and again, would hold up whoever follows
			return got >= n, fmt.Sprint(got, " ", r.Stderr())
		})
	}
	far(fast, perRound*rounds/3)
	late := b.Begin("--node-socket", b.HostSocket(), "logs", "-f", "web", "--tail", "100")
	far(fast, perRound*rounds)
	// The slow one is told of a gap, and comes to the end.
	last, gap := first.GetOffset()+int64(len(first.GetData())), int64(0)
	for last < perRound*rounds*width {
		m, err := slow.Recv()
		if err != nil {
			t.Fatalf("the slow one ended at %d: %v", last, err)
		}
		if m.GetOffset() < last {
			t.Fatalf("the slow one got offset %d again, after %d", m.GetOffset(), last)
		}
		gap += m.GetOffset() - last
		last = m.GetOffset() + int64(len(m.GetData()))
	}
	if gap == 0 {
		t.Error("the slow one missed nothing: the oldest segments were never removed")
	}
	b.Kill("sandboxhost")
	b.WaitReady()
	now := fast.Said() / width
	far(fast, now+3)
	text, tail := fast.Stdout(), late.Stdout()
	numberedFrom(t, "the fast one", text, 0)
	var begin int
	if _, err := fmt.Sscanf(tail, "%d\n", &begin); err != nil || begin == 0 {
		t.Fatalf("the tail begins with %.120q", tail)
	}
	far(late, now+3-begin)
	numberedFrom(t, "the late one", late.Stdout(), begin)
	far(other, now+3)
	numberedFrom(t, "the other fast one", other.Stdout(), 0)
	remove(t, b, uid)
	begun := time.Now()
	for name, r := range map[string]*bed.Running{"fast": fast, "other": other, "late": late} {
		if got := r.Wait(); got.Code != 0 || strings.Contains(got.Stderr, "not kept") {
			t.Errorf("the %s one ended with %d: %s", name, got.Code, got.Stderr)
		}
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("they ended %v after the sandbox was removed", took)
	}
	for err == nil {
		_, err = slow.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the slow one ended well though the host was killed under it")
	}
	settled(t, b)
}
