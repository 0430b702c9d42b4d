package rpc

import (
	"context"
	"log/slog"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// Bounds of the contract on the period of a level.
const (
	minLevelPeriod = time.Second
	maxLevelPeriod = 24 * time.Hour
)

// processServer serves ProcessService: the status, and the level of the log.
type processServer struct {
	*Status
	level *logging.Level // nil where the process does not let it be changed
}

// SetLogLevel sets the level at once.
func (p *processServer) SetLogLevel(_ context.Context, req *processv1.SetLogLevelRequest) (*processv1.SetLogLevelResponse, error) {
	if err := CheckLogLevel(req); err != nil {
		return nil, err
	}
	if p.level == nil {
		return nil, fault.New(fault.Conflict, "set log level: the level of this process cannot be changed while it runs")
	}
	previous := p.level.Set(levelOf[req.GetLevel()], req.GetPeriod().AsDuration())
	return &processv1.SetLogLevelResponse{Previous: LogLevel(previous)}, nil
}

// CheckLogLevel returns Invalid for an unknown level and for a period out of
// bounds.
func CheckLogLevel(req *processv1.SetLogLevelRequest) error {
	if _, ok := levelOf[req.GetLevel()]; !ok {
		return fault.New(fault.Invalid, "set log level: level %d is unknown: write debug, info, warn or error", req.GetLevel())
	}
	if req.Period == nil {
		return nil
	}
	period := req.GetPeriod().AsDuration()
	if req.GetPeriod().CheckValid() != nil || period < minLevelPeriod || period > maxLevelPeriod {
		return fault.New(fault.Invalid, "set log level: period %s is out of bounds: write %s to %s", period, minLevelPeriod, maxLevelPeriod)
	}
	return nil
}

var levelOf = map[processv1.LogLevel]slog.Level{
	processv1.LogLevel_LOG_LEVEL_DEBUG: slog.LevelDebug,
	processv1.LogLevel_LOG_LEVEL_INFO:  slog.LevelInfo,
	processv1.LogLevel_LOG_LEVEL_WARN:  slog.LevelWarn,
	processv1.LogLevel_LOG_LEVEL_ERROR: slog.LevelError,
}

// LogLevel is a level as the contract names it; unspecified for one that the
// contract does not know.
func LogLevel(level slog.Level) processv1.LogLevel {
	for name, l := range levelOf {
		if l == level {
			return name
		}
	}
	return processv1.LogLevel_LOG_LEVEL_UNSPECIFIED
}
