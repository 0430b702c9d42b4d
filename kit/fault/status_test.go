package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"staddle.internal/kit/fault"
)

// wire is what the other side gets.
func wire(err error) error { return fault.FromStatus(fault.ToStatus(err)) }

func TestWire_KeepsKindReasonMessageAndDetails(t *testing.T) {
	for _, k := range kinds {
		sent := fault.WithReason(fault.New(k, "mount volume v1: busy"), "BUSY")
		sent = fmt.Errorf("ensure sandbox s1: %w", fault.WithDetails(sent, wrapperspb.String("more")))
		for hop, got := range []error{wire(sent), wire(wire(sent))} {
			if !errors.Is(got, k) || fault.KindOf(got) != k {
				t.Errorf("%v, hop %d: kind %v", k, hop+1, fault.KindOf(got))
			}
			if r := fault.Reason(got); r != "BUSY" {
				t.Errorf("%v, hop %d: reason %q", k, hop+1, r)
			}
			if want := "ensure sandbox s1: mount volume v1: busy"; got.Error() != want {
				t.Errorf("%v, hop %d: message %q, want %q", k, hop+1, got, want)
			}
			if d := fault.Details(got); len(d) != 1 || !proto.Equal(d[0], wrapperspb.String("more")) {
				t.Errorf("%v, hop %d: details %v", k, hop+1, d)
			}
		}
	}
}

// What grpc says when it gives up repeating a call is not part of the message.
func TestFromStatus_OfARepeatedCall(t *testing.T) {
	sent := fault.ToStatus(fault.WithReason(fault.New(fault.Unavailable, "reach coordinator: timeout"), "CUT"))
	got := fault.FromStatus(fmt.Errorf("max retries exhausted: failed after 5 attempts: %w", sent))
	if fault.KindOf(got) != fault.Unavailable || fault.Reason(got) != "CUT" || got.Error() != "reach coordinator: timeout" {
		t.Errorf("got %v %q: %q", fault.KindOf(got), fault.Reason(got), got)
	}
}

func TestWire_Codes(t *testing.T) {
	want := map[fault.Kind]codes.Code{
		fault.Invalid: codes.InvalidArgument, fault.NotFound: codes.NotFound, fault.Exists: codes.AlreadyExists,
		fault.Conflict: codes.FailedPrecondition, fault.Exhausted: codes.ResourceExhausted,
		fault.Unavailable: codes.Unavailable, fault.Denied: codes.PermissionDenied, fault.Internal: codes.Internal,
	}
	for _, k := range kinds {
		if got := status.Code(fault.ToStatus(fault.New(k, "x"))); got != want[k] {
			t.Errorf("%v is sent as %v, want %v", k, got, want[k])
		}
	}
	if got := status.Code(fault.ToStatus(io.ErrUnexpectedEOF)); got != codes.Internal {
		t.Errorf("unclassified error is sent as %v, want Internal", got)
	}
}

func TestWire_Contexts(t *testing.T) {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		got := wire(fmt.Errorf("wait for s1: %w", cause))
		if !errors.Is(got, cause) {
			t.Errorf("errors.Is(%v, %v) is false on the other side", got, cause)
		}
		if !strings.HasPrefix(got.Error(), "wait for s1: ") {
			t.Errorf("message is lost: %q", got)
		}
	}
	got := wire(fault.New(fault.Exhausted, "x: %w", context.DeadlineExceeded))
	if !errors.Is(got, fault.Exhausted) || errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("a stated kind does not go before the context: %v", got)
	}
}

func TestFromStatus_ForeignStatusIsNotTakenForAnAnswer(t *testing.T) {
	tests := []struct {
		code    codes.Code
		message string
		want    fault.Kind
	}{
		{codes.NotFound, "no such path", fault.Internal},
		{codes.AlreadyExists, "x", fault.Internal},
		{codes.FailedPrecondition, "x", fault.Internal},
		{codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)", fault.Invalid},
		{codes.ResourceExhausted, "trying to send message larger than max (5 vs. 4)", fault.Invalid},
		{codes.ResourceExhausted, "too many streams", fault.Internal},
		{codes.InvalidArgument, "x", fault.Invalid},
		{codes.OutOfRange, "x", fault.Invalid},
		{codes.Unavailable, "connection refused", fault.Unavailable},
		{codes.PermissionDenied, "x", fault.Denied},
		{codes.Unauthenticated, "x", fault.Denied},
		{codes.Unimplemented, "unknown service", fault.Internal},
		{codes.Unknown, "x", fault.Internal},
	}
	for _, tt := range tests {
		got := fault.FromStatus(status.Error(tt.code, tt.message))
		if !errors.Is(got, tt.want) {
			t.Errorf("%v %q: kind %v, want %v", tt.code, tt.message, fault.KindOf(got), tt.want)
		}
		if got.Error() != tt.message {
			t.Errorf("%v: message %q, want %q", tt.code, got, tt.message)
		}
	}
}

func TestToStatus_LeavesAForeignStatus(t *testing.T) {
	st, err := status.New(codes.NotFound, "unknown service").WithDetails(wrapperspb.Bool(true))
	if err != nil {
		t.Fatal(err)
	}
	got := status.Convert(fault.ToStatus(st.Err()))
	if got.Code() != codes.NotFound || len(got.Details()) != 1 {
		t.Errorf("got %v with %d details, want it unchanged", got, len(got.Details()))
	}
}

func TestFromStatus_LeavesOtherErrors(t *testing.T) {
	for _, err := range []error{io.EOF, context.Canceled} {
		if got := fault.FromStatus(err); got != err { //nolint:errorlint // the very same
			t.Errorf("FromStatus(%v) = %v", err, got)
		}
	}
}

func TestToStatus_BoundsAndCleansTheMessage(t *testing.T) {
	got := status.Convert(fault.ToStatus(fault.New(fault.Invalid, "%s", strings.Repeat("ä\xff", 20_000)))).Message()
	if len(got) > 9<<10 || !utf8.ValidString(got) {
		t.Errorf("message has %d bytes, valid: %t", len(got), utf8.ValidString(got))
	}
}

func TestUnanswered(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want bool
		why  string
	}{
		{"nothing", nil, false, ""},
		{"no status", io.EOF, false, ""},
		{
			"made by grpc",
			status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /x: connect: connection refused"`),
			true, "dial unix /x: connect: connection refused",
		},
		{"made by grpc, for the last try of several", fmt.Errorf("retry: %w", status.Error(codes.Unavailable, "gone")), true, "gone"},
		{"answer of a process of ours", fault.ToStatus(fault.New(fault.Unavailable, "draining")), false, ""},
		{"another code", status.Error(codes.Internal, "x"), false, ""},
	} {
		if why, got := fault.Unanswered(c.err); got != c.want || why != c.why {
			t.Errorf("%s: got %v %q, want %v %q", c.name, got, why, c.want, c.why)
		}
	}
}

func TestByCode(t *testing.T) {
	name := fault.ByCode(func(k fault.Kind) string { return k.String() })
	for code, want := range map[codes.Code]string{
		codes.OK: "none", codes.NotFound: "not found", codes.PermissionDenied: "denied", codes.Unauthenticated: "denied",
		codes.Canceled: "unavailable", codes.DeadlineExceeded: "unavailable", codes.OutOfRange: "invalid", codes.DataLoss: "internal",
	} {
		if got := name(code); got != want {
			t.Errorf("%s is %s, want %s", code, got, want)
		}
	}
	for _, k := range kinds {
		if got := name(status.Code(fault.ToStatus(k))); got != k.String() {
			t.Errorf("%s came back as %s", k, got)
		}
	}
}
