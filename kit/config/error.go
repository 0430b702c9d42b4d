package config

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong in a file.
type Problem struct {
	// Line in the file, counted from 1; 0 when the problem has no place.
	Line int
	// Key is the dotted path of the value, such as "coordinator.address".
	Key string
	// Text says what is wrong.
	Text string
	// Remedy says what to write instead. Empty when the text says it.
	Remedy string
}

func (p Problem) in(file string) string {
	var b strings.Builder
	b.WriteString(file)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Text)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// Error is everything wrong in one configuration file. A process that meets it
// ends with exit code 2 and is not restarted with the same file.
type Error struct {
	// File is the path as it was given.
	File string
	// Problems in order of their lines; at least one.
	Problems []Problem
}

// Error lists all problems, one line each, with file, line, key and remedy.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.in(e.File)
	}
	return strings.Join(lines, "\n")
}

// ConfigAtFault marks the error for run.ExitCode: exit code 2, a restart does not
// help.
func (e *Error) ConfigAtFault() {}

// Wrong returns an Error with one problem that has no place in a file, for a
// flag or a variable: source names it, such as "--log-level".
func Wrong(source, format string, args ...any) error {
	return &Error{File: source, Problems: []Problem{{Text: fmt.Sprintf(format, args...)}}}
}
