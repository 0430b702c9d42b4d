package logging

import (
	"log/slog"
	"sync"
	"time"
)

// Level is the level of one process, which can be changed while it runs, for ever
// or for a time. Pass it to New. Safe for concurrent use.
type Level struct {
	base slog.Level
	now  slog.LevelVar

	mu    sync.Mutex  // guards all below
	timer *time.Timer // of the present period; nil without one
	sets  uint64      // counts calls of Set, so that an old timer does nothing
}

// NewLevel returns a level that is base until it is set, and again after each
// period.
func NewLevel(base slog.Level) *Level {
	l := &Level{base: base}
	l.now.Set(base)
	return l
}

// Level is the level that counts now.
func (l *Level) Level() slog.Level { return l.now.Level() }

// Set makes level count for the period, or for good if that is 0, and returns the
// one that counted before. It replaces an earlier Set with its period.
func (l *Level) Set(level slog.Level, period time.Duration) (previous slog.Level) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.sets++
	previous = l.now.Level()
	l.now.Set(level)
	if period > 0 {
		mine := l.sets
		l.timer = time.AfterFunc(period, func() { l.end(mine) })
	}
	return previous
}

// end goes back to the base, unless the level was set again meanwhile.
func (l *Level) end(mine uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sets == mine {
		l.now.Set(l.base)
		l.timer = nil
	}
}
