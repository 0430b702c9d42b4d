package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"staddle.internal/kit/fault"
)

var kinds = []fault.Kind{
	fault.Invalid, fault.NotFound, fault.Exists, fault.Conflict,
	fault.Exhausted, fault.Unavailable, fault.Denied, fault.Internal,
}

func TestNew_IsItsKindOnly(t *testing.T) {
	for _, k := range kinds {
		err := fmt.Errorf("get sandbox: %w", fault.New(k, "cause: %w", fs.ErrNotExist))
		for _, other := range kinds {
			if got, want := errors.Is(err, other), other == k; got != want {
				t.Errorf("errors.Is(%v error, %v) = %t, want %t", k, other, got, want)
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v error hides its cause", k)
		}
		if got := fault.KindOf(err); got != k {
			t.Errorf("KindOf = %v, want %v", got, k)
		}
	}
}

func TestNew_ReplacesTheKindOfItsCause(t *testing.T) {
	inner := fault.WithReason(fault.New(fault.NotFound, "disk d1: %w", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}), "GONE")
	err := fault.New(fault.Unavailable, "ask storage: %w", inner)
	if errors.Is(err, fault.NotFound) {
		t.Error("a failed question is taken for the answer: errors.Is(err, NotFound)")
	}
	if got := fault.KindOf(err); got != fault.Unavailable {
		t.Errorf("KindOf = %v, want Unavailable", got)
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); !ok || pathErr.Path != "/x" {
		t.Errorf("the cause's type is lost: %v", pathErr)
	}
	if got := fault.Reason(err); got != "GONE" {
		t.Errorf("Reason = %q, want GONE", got)
	}
}

func TestKindOf_Unclassified(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want fault.Kind
	}{
		{"nil", nil, 0},
		{"any", io.ErrUnexpectedEOF, fault.Internal},
		{"cancelled", fmt.Errorf("x: %w", context.Canceled), fault.Unavailable},
		{"late", context.DeadlineExceeded, fault.Unavailable},
		{"kind itself", fault.Denied, fault.Denied},
		{"joined", errors.Join(io.EOF, fault.New(fault.Conflict, "x")), fault.Conflict},
	}
	for _, tt := range tests {
		if got := fault.KindOf(tt.err); got != tt.want {
			t.Errorf("%s: KindOf = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestWith_NilStaysNil(t *testing.T) {
	if err := fault.WithReason(nil, "X"); err != nil {
		t.Errorf("WithReason(nil) = %v", err)
	}
	if err := fault.WithDetails(nil); err != nil {
		t.Errorf("WithDetails(nil) = %v", err)
	}
	if err := fault.ToStatus(nil); err != nil {
		t.Errorf("ToStatus(nil) = %v", err)
	}
	if err := fault.FromStatus(nil); err != nil {
		t.Errorf("FromStatus(nil) = %v", err)
	}
	if got := fault.KindOf(nil).String(); got != "none" {
		t.Errorf("kind of nil is called %q", got)
	}
}
