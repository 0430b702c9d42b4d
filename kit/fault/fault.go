// Package fault owns the kinds of errors, and how they cross a connection.
//
// A kind answers one question: what should the caller do? Code makes an error
// of a kind with New, asks with errors.Is(err, fault.NotFound) or KindOf, and
// gets the same answers on both sides of a gRPC connection, because the
// interceptors of this package turn kinds into statuses and back.
//
// It is the only package that imports grpc's codes and status. It must never
// decide whether to retry; that is the caller's business. In the trail it sits
// at every door between two processes.
package fault

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Kind is a class of failure. A caller acts on the kind and a person reads the
// message. Kind is itself an error, so that errors.Is(err, fault.NotFound) works
// on both sides of a connection.
type Kind int

// What the caller should do is the only thing that separates the kinds.
const (
	// Invalid: fix the request, never repeat it.
	Invalid Kind = iota + 1
	// NotFound: stop asking; a deletion is done.
	NotFound
	// Exists: adopt what is there.
	Exists
	// Conflict: read again, then decide again.
	Conflict
	// Exhausted: place it elsewhere.
	Exhausted
	// Unavailable: repeat here, with back-off.
	Unavailable
	// Denied: fix the credentials.
	Denied
	// Internal is the kind of everything unclassified: report a bug, repeat
	// with a low limit.
	Internal
)

var kindNames = [...]string{
	"none", "invalid", "not found", "already exists", "conflict", "exhausted", "unavailable", "denied", "internal",
}

// Error is the kind's name in words.
func (k Kind) Error() string { return k.String() }

// String is the kind's name in words.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// fault is an error of one kind. Only this outermost kind counts: a cause that
// is of another kind keeps its message and its types, but errors.Is does not
// find its kind any more. Else "ask storage: not found" made Unavailable would
// still be taken for an answer.
type fault struct {
	kind Kind
	err  error
}

func (f *fault) Error() string { return f.err.Error() }

// Is reports the kind itself, and everything but kinds of the cause.
func (f *fault) Is(target error) bool {
	if k, ok := target.(Kind); ok { //nolint:errorlint // the kind itself is compared, nothing wrapped
		return f.kind == k
	}
	return errors.Is(f.err, target)
}

// As finds types in the cause. A kind or fault inside stays hidden.
func (f *fault) As(target any) bool {
	if k, ok := target.(*Kind); ok {
		*k = f.kind
		return true
	}
	return errors.As(f.err, target)
}

// New makes an error of kind k. The format may wrap a cause with %w; the kind of
// the cause, if any, is replaced.
func New(k Kind, format string, args ...any) error {
	return &fault{kind: k, err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of err: 0 for nil, Internal for an unclassified one.
// An error of a context is Unavailable: the question was not answered.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	if k, ok := errors.AsType[Kind](err); ok {
		return k
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Unavailable
	}
	return Internal
}

// reasoned carries the machine-readable reason.
type reasoned struct {
	error
	reason string
}

func (r *reasoned) Unwrap() error { return r.error }

// WithReason adds a reason in UPPER_SNAKE for machines, which survives the wire.
// It returns nil for nil.
func WithReason(err error, reason string) error {
	if err == nil {
		return nil
	}
	return &reasoned{err, reason}
}

// Reason returns the outermost reason of err, or "".
func Reason(err error) string {
	if r, ok := errors.AsType[*reasoned](err); ok {
		return r.reason
	}
	return ""
}

// detailed carries messages for the status, such as the list of violations.
type detailed struct {
	error
	details []proto.Message
}

func (d *detailed) Unwrap() error { return d.error }

// WithDetails adds messages that ToStatus puts on the wire beside the text. It
// returns nil for nil.
func WithDetails(err error, details ...proto.Message) error {
	if err == nil || len(details) == 0 {
		return err
	}
	return &detailed{err, details}
}

// Details returns the outermost messages added by WithDetails, here or on the
// other side of a connection.
func Details(err error) []proto.Message {
	if d, ok := errors.AsType[*detailed](err); ok {
		return d.details
	}
	return nil
}
