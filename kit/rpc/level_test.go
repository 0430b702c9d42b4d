package rpc

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

func TestSetLogLevel(t *testing.T) {
	const debug, info = processv1.LogLevel_LOG_LEVEL_DEBUG, processv1.LogLevel_LOG_LEVEL_INFO
	level := logging.NewLevel(slog.LevelInfo)
	s := &processServer{Status: NewStatus("x", "v"), level: level}
	answer, err := s.SetLogLevel(t.Context(), &processv1.SetLogLevelRequest{Level: debug, Period: durationpb.New(time.Hour)})
	if err != nil || answer.GetPrevious() != info || level.Level() != slog.LevelDebug {
		t.Fatalf("got %v, %v and level %s, want debug after info", answer, err, level.Level())
	}
	for name, req := range map[string]*processv1.SetLogLevelRequest{
		"no level":         {},
		"unknown level":    {Level: 9},
		"short period":     {Level: info, Period: durationpb.New(time.Second - 1)},
		"long period":      {Level: info, Period: durationpb.New(24*time.Hour + 1)},
		"negative period":  {Level: info, Period: durationpb.New(-time.Hour)},
		"malformed period": {Level: info, Period: &durationpb.Duration{Seconds: 5, Nanos: -1}},
	} {
		_, err := s.SetLogLevel(t.Context(), req)
		if fault.KindOf(err) != fault.Invalid || level.Level() != slog.LevelDebug {
			t.Errorf("%s: got %v and level %s, want Invalid and nothing changed", name, err, level.Level())
		}
	}
	_, err = (&processServer{Status: NewStatus("x", "v")}).SetLogLevel(t.Context(), &processv1.SetLogLevelRequest{Level: debug})
	wantKind(t, err, fault.Conflict)
}
