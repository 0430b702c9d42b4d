package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"staddle.internal/kit/fault"
)

// lines waits for count lines about a method and returns them: the server writes
// its line when the caller may have its answer already.
func (l *logBuffer) lines(t *testing.T, method string, count int) []map[string]any {
	t.Helper()
	var out []map[string]any
	eventually(t, fmt.Sprintf("%d lines about %s", count, method), func() (any, bool) {
		out = nil
		for line := range strings.Lines(l.String()) {
			var fields map[string]any
			if json.NewDecoder(strings.NewReader(line)).Decode(&fields) == nil && fields["method"] == method {
				out = append(out, fields)
			}
		}
		return l.String(), len(out) >= count
	})
	if len(out) != count {
		t.Fatalf("%d lines about %s, want %d: %v", len(out), method, count, out)
	}
	return out
}

func (l *logBuffer) json() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func keys(line map[string]any) string {
	return strings.Join(slices.Sorted(maps.Keys(line)), " ")
}

// The keys are a promise: whatever the library knows besides is not written.
func TestServer_LinesHaveTheFixedKeys(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.json() }, do: behaviour{
		unary: func(_ context.Context, _, in string) (string, error) {
			if in == "bad" {
				return "", fault.New(fault.Conflict, "change x1: stale")
			}
			return in, nil
		},
		stream: func(string, grpc.ServerStream) error { return nil },
	}}.start(t)
	conn := dial(t, n.path, DialConfig{})
	_, err := call(t.Context(), conn, "Change", "good")
	must(t, err)
	_, err = call(t.Context(), conn, "Ensure", "bad")
	wantKind(t, err, fault.Conflict)
	ss, err := open(t.Context(), conn, "Talk")
	must(t, err)
	if err := ss.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for method, want := range map[string]struct{ keys, code, err string }{
		"Change": {"code duration_ms level method msg peer time", "OK", ""},
		"Ensure": {"code duration_ms err level method msg peer time", "conflict", "change x1: stale"},
		"Talk":   {"code duration_ms level method msg peer time", "OK", ""},
	} {
		line := log.lines(t, full(method), 1)[0]
		said, _ := line["err"].(string)
		if keys(line) != want.keys || line["code"] != want.code || said != want.err || line["msg"] != "call served" || line["peer"] != "uid 0" {
			t.Errorf("%s: %v, want %+v", method, line, want)
		}
		if took, ok := line["duration_ms"].(float64); !ok || took < 0 {
			t.Errorf("%s: duration %v", method, line["duration_ms"])
		}
	}
}

func TestServer_LogsAStreamOnceAndNoMessage(t *testing.T) {
	const messages = 50
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.json() }, do: behaviour{stream: func(_ string, ss grpc.ServerStream) error {
		for range messages {
			if err := errors.Join(ss.RecvMsg(new(wrapperspb.StringValue)), ss.SendMsg(wrapperspb.String("secret"))); err != nil {
				return err
			}
		}
		return nil
	}}}.start(t)
	ss, err := open(t.Context(), dial(t, n.path, DialConfig{}), "Talk")
	must(t, err)
	for i := range messages {
		must(t, ss.RecvMsg(new(wrapperspb.StringValue)))
		if i < messages-1 {
			must(t, ss.SendMsg(wrapperspb.String("secret")))
		}
	}
	if err := ss.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	log.lines(t, full("Talk"), 1)
	if all := strings.Count(log.String(), "\n"); all != 1 || strings.Contains(log.String(), "secret") {
		t.Errorf("%d lines, want the one of the call and no content:\n%s", all, log.String())
	}
}

// A handler's error that wraps the end of a file is a failure like others.
func TestServer_LogsTheEndOfAFileAsAFailure(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.json() }, do: behaviour{unary: func(context.Context, string, string) (string, error) {
		return "", fmt.Errorf("read note n1: %w", io.EOF)
	}}}.start(t)
	_, err := call(t.Context(), dial(t, n.path, DialConfig{}), "Change", "")
	wantKind(t, err, fault.Internal)
	if line := log.lines(t, full("Change"), 1)[0]; line["code"] != "internal" || line["err"] != "read note n1: EOF" {
		t.Errorf("got %v", line)
	}
}

// The stack is for the log; the caller learns that there was a panic. The call has
// its line like every other.
func TestServer_LogsAPanicWithItsStackAndTellsNobody(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = log.json() }, do: behaviour{
		unary:  func(context.Context, string, string) (string, error) { panic("bang") },
		stream: func(string, grpc.ServerStream) error { panic("bang") },
	}}.start(t)
	conn := dial(t, n.path, DialConfig{})
	_, unaryErr := call(t.Context(), conn, "Change", "")
	ss, err := open(t.Context(), conn, "Talk")
	must(t, err)
	streamErr := ss.RecvMsg(new(wrapperspb.StringValue))
	for method, err := range map[string]error{"Change": unaryErr, "Talk": streamErr} {
		if fault.KindOf(err) != fault.Internal || err.Error() != "panic: bang" {
			t.Errorf("%s: the caller was told %v", method, err)
		}
		lines := log.lines(t, full(method), 2)
		stack, _ := lines[0]["err"].(string)
		if lines[0]["msg"] != "handler panicked" || !strings.Contains(stack, "line_test.go") {
			t.Errorf("%s: the first line has no stack: %v", method, lines[0])
		}
		if lines[1]["msg"] != "call served" || lines[1]["code"] != "internal" || lines[1]["err"] != "panic: bang" {
			t.Errorf("%s: the line of the call is %v", method, lines[1])
		}
	}
}

// fragile is a handler of lines that panics on those of calls.
type fragile struct{ slog.Handler }

func (f fragile) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "call served" {
		panic("no room for " + r.Message)
	}
	return f.Handler.Handle(ctx, r)
}

// What panics around the handler does not end the process either.
func TestServer_SurvivesAPanicOfAnInterceptor(t *testing.T) {
	var log logBuffer
	n := setup{with: func(c *ServerConfig) { c.Log = slog.New(fragile{slog.NewJSONHandler(&log, nil)}) }}.start(t)
	conn := dial(t, n.path, DialConfig{})
	for range 2 {
		_, err := call(t.Context(), conn, "Change", "")
		wantKind(t, err, fault.Internal)
	}
	if _, err := call(t.Context(), conn, "Read", ""); err != nil { // its line is not written at this level
		t.Errorf("after the panics: %v", err)
	}
	log.lines(t, full("Change"), 2)
}

func TestDial_LogsCallsThatFailed(t *testing.T) {
	n := setup{do: behaviour{unary: func(_ context.Context, _, in string) (string, error) {
		if in == "missing" {
			return "", fault.New(fault.NotFound, "get x1: not there")
		}
		return in, nil
	}}}.start(t)
	var log logBuffer
	conn := dial(t, n.path, DialConfig{Log: log.json()})
	_, err := call(t.Context(), conn, "Change", "there")
	must(t, err)
	_, err = call(t.Context(), conn, "Change", "missing")
	wantKind(t, err, fault.NotFound)
	line := log.lines(t, full("Change"), 1)[0]
	if want := "code duration_ms err level method msg time"; keys(line) != want {
		t.Errorf("keys %q, want %q", keys(line), want)
	}
	if line["level"] != "DEBUG" || line["msg"] != "call failed" || line["code"] != "not found" || line["err"] != "get x1: not there" {
		t.Errorf("got %v", line)
	}
	if bytes.Count([]byte(log.String()), []byte("\n")) != 1 {
		t.Errorf("more than one line:\n%s", log.String())
	}
}
