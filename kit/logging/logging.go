// Package logging makes the one logger of a process and spells the keys of its
// attributes.
//
// It owns the fixed set of keys: nobody else types one as a string, so that a
// value has the same name in every line of every process. Ids spell their own
// key next to their type (kit/id). It must never be global: the logger is passed
// by constructor and derived at three places only, per process, per request and
// per keeper.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// FormatVariable is the environment variable that forces a format: "json" or
// "text". Unset means text on a terminal and JSON everywhere else.
const FormatVariable = "STADDLE_LOG"

// New returns the logger of a process. Each line carries the process name. The
// level may be changed while the logger is in use by passing a *Level.
func New(w io.Writer, level slog.Leveler, process string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	if asText(w, os.Getenv(FormatVariable)) {
		h = slog.NewTextHandler(w, opts)
	} else {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(h).With(slog.String("process", process))
}

// ParseLevel reads debug, info, warn or error, and says which exist otherwise.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q is unknown: write debug, info, warn or error", s)
}

func asText(w io.Writer, format string) bool {
	switch format {
	case "json":
		return false
	case "text":
		return true
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Err is the cause of what the line says, key "err".
func Err(err error) slog.Attr {
	if err == nil {
		return slog.String("err", "")
	}
	return slog.String("err", err.Error())
}

// Reason is a sentence or a machine reason, key "reason".
func Reason(s string) slog.Attr { return slog.String("reason", s) }

// Step is the name of an effect, key "step".
func Step(s string) slog.Attr { return slog.String("step", s) }

// Phase is the forward-only state of a sandbox or volume, key "phase".
func Phase(s string) slog.Attr { return slog.String("phase", s) }

// From is the state that was left, key "from".
func From(s string) slog.Attr { return slog.String("from", s) }

// To is the state that was entered, key "to".
func To(s string) slog.Attr { return slog.String("to", s) }

// Generation counts changes of a spec, key "generation".
func Generation(n int64) slog.Attr { return slog.Int64("generation", n) }

// Epoch counts the holders of a disk, key "epoch".
func Epoch(n uint64) slog.Attr { return slog.Uint64("epoch", n) }

// LeaseUID names a disk lease, key "lease_uid".
func LeaseUID(uid string) slog.Attr { return slog.String("lease_uid", uid) }

// Watch names a watch on a neighbour, key "watch".
func Watch(s string) slog.Attr { return slog.String("watch", s) }

// Attempt counts lives or tries, key "attempt".
func Attempt(n int64) slog.Attr { return slog.Int64("attempt", n) }

// RetryIn is the wait before the next try, key "retry_in_ms".
func RetryIn(d time.Duration) slog.Attr { return slog.Int64("retry_in_ms", d.Milliseconds()) }

// ExitCode is the code with which a process ended, key "exit_code".
func ExitCode(n int) slog.Attr { return slog.Int("exit_code", n) }

// ExitSignal is the signal that ended a process, key "exit_signal".
func ExitSignal(s string) slog.Attr { return slog.String("exit_signal", s) }

// Seq counts events or changes, key "seq".
func Seq(n uint64) slog.Attr { return slog.Uint64("seq", n) }

// Method is the full name of an RPC, key "method".
func Method(s string) slog.Attr { return slog.String("method", s) }

// Code is the kind of an RPC's outcome, "OK" for success, key "code".
func Code(s string) slog.Attr { return slog.String("code", s) }

// Duration is how long something took, key "duration_ms".
func Duration(d time.Duration) slog.Attr {
	return slog.Float64("duration_ms", float64(d.Microseconds())/1000)
}

// Peer is who called, key "peer".
func Peer(s string) slog.Attr { return slog.String("peer", s) }

// Component is the name of a neighbour, a member or a supervised process, key
// "component".
func Component(s string) slog.Attr { return slog.String("component", s) }

// Path is a file, folder or socket, key "path".
func Path(s string) slog.Attr { return slog.String("path", s) }

// Version is the version of a binary, key "version".
func Version(s string) slog.Attr { return slog.String("version", s) }

// ConfigHash is the short digest of the configuration in use, key "config_hash".
func ConfigHash(s string) slog.Attr { return slog.String("config_hash", s) }

// Count is a number of things that the message names, key "count".
func Count(n int) slog.Attr { return slog.Int("count", n) }

// Service is the name of a service, key "service".
func Service(name string) slog.Attr { return slog.String("service", name) }

// Secret names a secret; its values are never logged.
func Secret(name string) slog.Attr { return slog.String("secret", name) }

// Revision is a position in the coordinator's history.
func Revision(n uint64) slog.Attr { return slog.Uint64("revision", n) }
