// Package validate checks requests against the rules in their contracts.
//
// It owns the one place where protovalidate runs. All violations of a request are
// reported at once, as fault.Invalid with the path of each field in the text and
// as details. It is a package of its own because its rule engine costs megabytes:
// only processes that take input from outside link it. It must never hold a rule
// itself; rules stand in the proto files.
package validate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

// New compiles the rules of the given request messages, so that the first call
// does not pay for it, and returns the interceptor that checks every message a
// client sends. Rules of other messages are compiled when they are first met.
func New(msgs ...proto.Message) (rpc.Interceptor, error) {
	v, err := protovalidate.New(protovalidate.WithMessages(msgs...))
	if err != nil {
		return rpc.Interceptor{}, fmt.Errorf("compile validation rules: %w", err)
	}
	return rpc.Interceptor{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := check(v, req); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, &checkedStream{ss, v})
		},
	}, nil
}

// checkedStream checks each message that the handler receives.
type checkedStream struct {
	grpc.ServerStream
	validator protovalidate.Validator
}

// RecvMsg fails with fault.Invalid for a message that breaks a rule.
func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return check(s.validator, m)
}

// check is nil for what is no proto message: a gateway's raw bytes have no rules.
func check(v protovalidate.Validator, req any) error {
	msg, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	err := v.Validate(msg)
	if err == nil {
		return nil
	}
	name := msg.ProtoReflect().Descriptor().FullName()
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return fmt.Errorf("validate %s: %w", name, err) // a rule that cannot be evaluated is our fault
	}
	texts := make([]string, len(broken.Violations))
	for i, violation := range broken.Violations {
		texts[i] = violation.String()
	}
	invalid := fault.New(fault.Invalid, "validate %s: %s", name, strings.Join(texts, "; "))
	return fault.WithDetails(invalid, broken.ToProto())
}
