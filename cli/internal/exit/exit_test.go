package exit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

func TestCode(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"nothing wrong", nil, 0},
		{"unclassified", errors.New("x"), 1},
		{"usage", exit.BadUsage("x"), 2},
		{"a file", &config.Error{File: "f", Problems: []config.Problem{{Text: "x"}}}, 2},
		{"invalid", fault.New(fault.Invalid, "x"), 2},
		{"not found", fmt.Errorf("get: %w", fault.New(fault.NotFound, "x")), 3},
		{"exists", fault.New(fault.Exists, "x"), 4},
		{"conflict", fault.New(fault.Conflict, "x"), 4},
		{"exhausted", fault.New(fault.Exhausted, "x"), 1},
		{"unavailable", fault.New(fault.Unavailable, "x"), 5},
		{"out of time", context.DeadlineExceeded, 5},
		{"denied", exit.Try(fault.New(fault.Denied, "x"), "sudo"), 6},
		{"a container's own code", exit.WithCode(42), 42},
		{"a container's own code beside a failed clean-up", errors.Join(exit.WithCode(42), errors.New("x")), 42},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := exit.Code(tt.err); got != tt.want {
				t.Errorf("Code(%v) = %d, want %d", tt.err, got, tt.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"nothing", nil, ""},
		{"silent", exit.WithCode(3), ""},
		{"message", fmt.Errorf("get web: %w", fault.New(fault.NotFound, "not found")), "staddle: get web: not found\n"},
		{"the next step nearest to the cause", exit.Try(fmt.Errorf("a: %w", exit.Try(errors.New("b"), "inner")), "outer"),
			"staddle: a: b\ntry: inner\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			exit.Report(&b, tt.err)
			if b.String() != tt.want {
				t.Errorf("got %q, want %q", b.String(), tt.want)
			}
		})
	}
}
