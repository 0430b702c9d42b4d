// Package exit owns how a command ends: its exit code, the one message it
// prints, and the next step that it suggests.
//
// Commands return errors with kinds of kit/fault; this package turns them into
// the codes that "staddle --help" documents. It must never print anything but
// the end of the command, and never guess a kind: what nobody classified is a
// plain failure. In the trail it is the last thing that a person sees.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// Exit codes of every command. "run" in the foreground and "exec" end with the
// container's or the process's own code instead, and a command that a signal ended with
// 128 plus the signal's number.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	NotFound    = 3
	Conflict    = 4
	Unavailable = 5
	Denied      = 6
	Unhealthy   = 7
)

// Exit codes of commands that end with the code of a process of somebody else, for
// failures that are not that process's: those above it may use itself.
const (
	NotEnded      = 125 // staddle failed, or does not know how it ended
	NotExecutable = 126
	NoCommand     = 127
)

// Help is the paragraph about exit codes.
const Help = `Exit codes:
  0  done
  1  failed
  2  wrong usage, or a wrong file
  3  not found
  4  in conflict with what is there: it exists, was changed, or is in use
  5  not reachable, or not ready in time
  6  not allowed
  7  something is wrong, says "doctor" or "explain"
  "run" in the foreground ends with the code of the container; a command that
  a signal ends has 128 plus the number of the signal. "exec" ends with the code
  of the process; with 125 if it could not be begun or nobody knows how it ended,
  126 if it cannot be executed, 127 if it is not in the container.`

// Status is an error that says how the process ends and prints nothing: the
// command has said everything already.
type Status struct {
	// Code of the process.
	Code int
}

// Error names the code.
func (s *Status) Error() string { return fmt.Sprintf("exit code %d", s.Code) }

// WithCode returns an error that ends the process silently with code, or nil for
// code 0.
func WithCode(code int) error {
	if code == OK {
		return nil
	}
	return &Status{code}
}

// coded gives an error a code of its own.
type coded struct {
	error
	code int
}

func (c *coded) Unwrap() error { return c.error }

// As returns err, which is printed as always, with the code that the process ends with.
// It returns nil for nil, and leaves wrong usage and a Status as they are.
func As(err error, code int) error {
	_, said := errors.AsType[*Status](err)
	_, wrong := errors.AsType[*usage](err)
	if err == nil || said || wrong {
		return err
	}
	return &coded{err, code}
}

// usage marks a mistake on the command line.
type usage struct{ error }

func (u *usage) Unwrap() error { return u.error }

// BadUsage returns an error for a wrong command line.
func BadUsage(format string, args ...any) error { return &usage{fmt.Errorf(format, args...)} }

// hinted carries the next step.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// Try adds a next step to err, for the line "try: ...". The innermost one is
// printed: it is the nearest to the cause. It returns nil for nil.
func Try(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*hinted](err); ok {
		return err
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// Hint returns the next step that err carries, or "".
func Hint(err error) string {
	if h, ok := errors.AsType[*hinted](err); ok {
		return h.hint
	}
	return ""
}

var codeOf = map[fault.Kind]int{
	fault.Invalid: Usage, fault.NotFound: NotFound, fault.Exists: Conflict, fault.Conflict: Conflict,
	fault.Exhausted: Failed, fault.Unavailable: Unavailable, fault.Denied: Denied, fault.Internal: Failed,
}

// Code returns the exit code for err.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if s, ok := errors.AsType[*Status](err); ok {
		return s.Code
	}
	if c, ok := errors.AsType[*coded](err); ok {
		return c.code
	}
	if _, ok := errors.AsType[*usage](err); ok {
		return Usage
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return Usage
	}
	return codeOf[fault.KindOf(err)]
}

// Report prints err as one message "staddle: ..." and, if it has one, the next
// step as "try: ...". It prints nothing for nil and for a Status.
func Report(w io.Writer, err error) {
	if err == nil {
		return
	}
	if _, ok := errors.AsType[*Status](err); ok {
		return
	}
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) && !strings.Contains(text, context.DeadlineExceeded.Error()) {
		text += ": no answer in time"
	}
	fmt.Fprintf(w, "staddle: %s\n", text)
	if hint := Hint(err); hint != "" {
		fmt.Fprintf(w, "try: %s\n", hint)
	}
}
