package follow_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/sandbox"
)

const (
	stdout = sandboxhostv1.LogStream_LOG_STREAM_STDOUT
	stderr = sandboxhostv1.LogStream_LOG_STREAM_STDERR
)

var readAt = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// pieces answers with the text in chunks that are cut at the given places.
func pieces(stream sandboxhostv1.LogStream, text string, cuts ...int) answer {
	return func(_ *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
		from := 0
		for _, to := range append(cuts, len(text)) {
			err := emit(&sandboxhostv1.ReadLogsResponse{
				Attempt: 1, Stream: stream, Offset: int64(from), Data: []byte(text[from:to]), ReadAt: timestamppb.New(readAt),
			})
			if err != nil {
				return err
			}
			from = to
		}
		return nil
	}
}

func shown(t *testing.T, f follow.Format, answers ...answer) (out, errOut string) {
	t.Helper()
	host := &scripted{states: []*sandbox.Sandbox{box(1, ended, true)}, logs: answers}
	var o, e strings.Builder
	if err := follow.Run(t.Context(), host, follow.Request{UID: "u", Container: "main"}, follow.Output{Stdout: &o, Stderr: &e, Lines: &f}); err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String()
}

// Text comes out as it went in wherever chunks are cut. (LOG-3)
func TestLines_LOG3_CutAnywhere(t *testing.T) {
	const text = "é\n\r\x00 \U0001F600\n\nlast without end ä"
	const want = "w/c é\nw/c \r\x00 \U0001F600\nw/c \nw/c last without end ä\n"
	for i := 1; i < len(text); i++ {
		for j := i; j < len(text); j++ {
			if got, _ := shown(t, follow.Format{Prefix: "w/c "}, pieces(stdout, text, i, j)); got != want {
				t.Fatalf("cut at %d and %d: got %q, want %q", i, j, got, want)
			}
		}
	}
}

func TestLines_TellsTimeAndStream(t *testing.T) {
	out, errOut := shown(t, follow.Format{Times: true}, pieces(stderr, "broken\n"))
	if out != "" || errOut != "2026-01-02T03:04:05.000000006Z broken\n" {
		t.Errorf("got %q and %q", out, errOut)
	}
}

// What JSON says can be joined to exactly what was written. (LOG-3)
func TestLines_LOG3_JSONIsExact(t *testing.T) {
	for _, text := range []string{
		"a\n\nb", "no utf-8: \xff\n", "<&>\r\x00\n",
		strings.Repeat("\U0001F600", 600_000) + "\nafter\n", // longer than two pieces
		strings.Repeat("x", follow.MaxLine) + "\n" + strings.Repeat("y", follow.MaxLine-1) + "\n",
	} {
		got, _ := shown(t, follow.Format{JSON: true, Sandbox: "web", Container: "main"}, pieces(stdout, text, len(text)/3))
		var joined strings.Builder
		for _, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
			var o struct {
				Sandbox, Container, Stream, Time, Text string
				Bytes                                  []byte
				Offset                                 int64
				Attempt                                uint64
				Partial                                bool
			}
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatalf("%.100s: %v", line, err)
			}
			if o.Offset != int64(joined.Len()) || o.Sandbox != "web" || o.Container != "main" || o.Stream != "stdout" || o.Attempt != 1 || o.Time == "" {
				t.Errorf("at %d got %.200s", joined.Len(), line)
			}
			if len(o.Text) > follow.MaxLine || !utf8.ValidString(o.Text) {
				t.Errorf("a piece has %d bytes", len(o.Text))
			}
			joined.WriteString(o.Text)
			joined.Write(o.Bytes)
			if !o.Partial {
				joined.WriteByte('\n')
			}
		}
		if joined.String() != text {
			t.Errorf("joined %.60q (%d bytes), want %.60q (%d)", joined.String(), joined.Len(), text, len(text))
		}
	}
}

// A cut before anything was shown asks for the same beginning again; one after it goes
// on behind what was shown.
func TestRun_BeginsOnce(t *testing.T) {
	away := fault.New(fault.Unavailable, "cut")
	cut := func(*sandboxhostv1.ReadLogsRequest, func(*sandboxhostv1.ReadLogsResponse) error) error { return away }
	begin := func(_ *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
		for _, stream := range []sandboxhostv1.LogStream{stdout, stderr} {
			if err := emit(&sandboxhostv1.ReadLogsResponse{Stream: stream, Offset: 40}); err != nil {
				return err
			}
		}
		return away
	}
	host := &scripted{states: []*sandbox.Sandbox{box(1, running, true), box(1, ended, true)}, logs: []answer{cut, begin, chunk(40, "new", nil)}}
	var out, errOut strings.Builder
	tail := uint32(0)
	err := follow.Run(t.Context(), host, follow.Request{UID: "u", Attempt: 1, Follow: true, Tail: &tail, Since: readAt},
		follow.Output{Stdout: &out, Stderr: &errOut, Turn: &sync.Mutex{}})
	if err != nil || out.String() != "new" || errOut.String() != "" {
		t.Errorf("got %q, %q, %v", out.String(), errOut.String(), err)
	}
	for i, r := range host.asked {
		if first := i < 2; (r.TailLines != nil) != first || (r.GetSince() != nil) != first || (r.GetStdoutOffset() == 40) == first {
			t.Errorf("request %d is %v", i, r)
		}
	}
}
