package etcd

import (
	"context"
	"fmt"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"staddle.internal/kit/logging"
)

// zapLogger brings what etcd logs into our log. Its warnings are ours at Debug
// (it warns about every slow disk and every default), its errors at Warn: what
// really fails comes back to us as an error as well.
func zapLogger(log *slog.Logger) *zap.Logger {
	return zap.New(&core{log: log})
}

// core hands zap's entries to slog.
type core struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled keeps etcd's own Info and Debug lines out.
func (c *core) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), level(l)) //nolint:forbidigo // zap has no context
}

// With adds fields to every later entry.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check registers this core for an entry that it wants.
func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write logs one entry: etcd's text and fields are the reason.
func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	c.log.Log(context.Background(), level(e.Level), "etcd complained", //nolint:forbidigo // zap has no context
		logging.Reason(fmt.Sprintf("%s %v", e.Message, enc.Fields)))
	return nil
}

// Sync has nothing to flush.
func (c *core) Sync() error { return nil }
