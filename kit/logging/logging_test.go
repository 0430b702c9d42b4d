package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNew_FormatAndLevel(t *testing.T) {
	for _, tc := range []struct{ format, want string }{
		{"", `"msg":"sandbox started"`}, {"json", `"msg":"sandbox started"`}, {"text", `msg="sandbox started"`},
	} {
		t.Setenv(FormatVariable, tc.format)
		var out bytes.Buffer
		var level slog.LevelVar
		log := New(&out, &level, "storage")
		log.Debug("invisible")
		log.Info("sandbox started")
		if got := out.String(); !strings.Contains(got, tc.want) || !strings.Contains(got, "storage") || strings.Contains(got, "invisible") {
			t.Errorf("format %q: %s", tc.format, got)
		}
		level.Set(slog.LevelDebug)
		log.Debug("visible")
		if !strings.Contains(out.String(), "visible") {
			t.Error("the level cannot be changed")
		}
	}
}

func TestNew_JSONIntoAFile(t *testing.T) {
	t.Setenv(FormatVariable, "")
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if asText(f, "") {
		t.Error("a file is taken for a terminal")
	}
}

func TestParseLevel(t *testing.T) {
	for text, want := range map[string]slog.Level{"debug": -4, "info": 0, "warn": 4, "error": 8} {
		if got, err := ParseLevel(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if _, err := ParseLevel("loud"); err == nil || !strings.Contains(err.Error(), "debug, info, warn or error") {
		t.Errorf("got %v", err)
	}
}

// The keys are a promise to whoever reads logs.
func TestKeys(t *testing.T) {
	attrs := []slog.Attr{
		Err(errors.New("x")), Reason("r"), Step("s"), Phase("p"), From("a"), To("b"), Generation(1), Attempt(2), RetryIn(time.Second),
		Method("/m"), Code("OK"), Duration(1500 * time.Microsecond), Peer("uid 0"), Component("storage"), Path("/p"), Version("v"), ConfigHash("h"), Count(3),
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).LogAttrs(t.Context(), slog.LevelInfo, "m", attrs...)
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["duration_ms"] != 1.5 || got["retry_in_ms"] != 1000.0 {
		t.Errorf("units: %v", got)
	}
	keys := make([]string, len(attrs))
	for i, a := range attrs {
		keys[i] = a.Key
	}
	slices.Sort(keys)
	want := []string{
		"attempt", "code", "component", "config_hash", "count", "duration_ms", "err", "from", "generation", "method", "path", "peer",
		"phase", "reason", "retry_in_ms", "step", "to", "version",
	}
	if !slices.Equal(keys, want) {
		t.Errorf("got %v\nwant %v", keys, want)
	}
	if Err(nil).Value.String() != "" {
		t.Error("no error has a text")
	}
}
