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

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"cel.dev/cel-go/common/types/pb"
	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/rpc/validate/words"
)

// core knows the rules that were met so far. Its library would describe every message
// linked into the program to its language of rules, whether a rule speaks of it or not:
// 2 MB in each of our processes, and the unfolded descriptors of everything that
// containerd has. So the list of what is linked is put aside while the core is made. It
// learns of a message, and of those in it, when it compiles that message's rules. Nobody
// else looks at the list meanwhile: packages are initialised one by one, before main.
var core, errCore = newCore()

func newCore() (protovalidate.Validator, error) {
	linked := protoregistry.GlobalFiles
	defer func() { protoregistry.GlobalFiles = linked }()
	protoregistry.GlobalFiles = new(protoregistry.Files)
	return protovalidate.New()
}

// New compiles the rules of the given request messages, so that the first call
// does not pay for it, and returns the interceptor that checks every message a
// client sends. Rules of other messages are compiled when they are first met. What
// is no message, such as a gateway's raw bytes, has no rules and passes.
// It must return before the process checks its first message.
func New(msgs ...proto.Message) (rpc.Interceptor, error) {
	if errCore != nil {
		return rpc.Interceptor{}, fmt.Errorf("make the validator: %w", errCore)
	}
	var err error
	for _, m := range msgs {
		err = errors.Join(err, describe(m))
	}
	for _, m := range msgs {
		err = errors.Join(err, compile(m))
	}
	if err != nil {
		return rpc.Interceptor{}, fmt.Errorf("compile validation rules: %w", err)
	}
	return rpc.Interceptor{
		Unary:  unary(middleware.UnaryServerInterceptor(core)),
		Stream: stream(middleware.StreamServerInterceptor(core)),
	}, nil
}

// describe tells the language of rules once for all of the files that a message needs.
// Otherwise it describes each of them anew for every field whose rules are compiled.
func describe(m proto.Message) error {
	var errs []error
	for _, file := range pb.CollectFileDescriptorSet(m) {
		_, err := pb.DefaultDb.RegisterDescriptor(file)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// compile has the core meet a message; whether that one keeps its rules does not
// matter.
func compile(m proto.Message) error {
	err := core.Validate(m)
	if _, broken := errors.AsType[*protovalidate.ValidationError](err); broken {
		err = nil // a verdict, from rules that compile
	}
	return err
}

// unary gives the refusal of check its kind, and leaves the handler's errors alone.
func unary(check grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		msg, ok := req.(proto.Message)
		if !ok {
			return handler(ctx, req)
		}
		passed := false
		resp, err := check(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			passed = true
			return handler(ctx, req)
		})
		if err != nil && !passed {
			return nil, refusal(msg, err)
		}
		return resp, err
	}
}

// stream does the same for each message that the handler receives.
func stream(check grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		source := &source{ServerStream: ss}
		return check(srv, source, info, func(srv any, checked grpc.ServerStream) error {
			return handler(srv, &checkedStream{ServerStream: checked, source: source})
		})
	}
}

// source is the stream below the check. It knows whether the last message came.
type source struct {
	grpc.ServerStream
	came bool
}

// RecvMsg receives as the stream does.
func (s *source) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.came = err == nil
	return err
}

// checkedStream is the stream above the check.
type checkedStream struct {
	grpc.ServerStream
	source *source
}

// RecvMsg fails with fault.Invalid for a message that came and breaks a rule.
func (s *checkedStream) RecvMsg(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return s.source.RecvMsg(m)
	}
	err := s.ServerStream.RecvMsg(m)
	if err != nil && s.source.came {
		return refusal(msg, err)
	}
	return err
}

// refusal turns the status of a check into a kind. It names the message and all
// that is wrong with it, where the status names the fields alone.
func refusal(msg proto.Message, refused error) error {
	err := fault.FromStatus(refused)
	name := msg.ProtoReflect().Descriptor().FullName()
	for _, detail := range fault.Details(err) {
		broken, ok := detail.(*validate.Violations)
		if !ok {
			continue
		}
		texts := make([]string, len(broken.GetViolations()))
		for i, v := range broken.GetViolations() {
			texts[i] = words.Of(v)
			if path := protovalidate.FieldPathString(v.GetField()); path != "" {
				texts[i] = path + ": " + texts[i]
			}
		}
		return fault.WithDetails(fault.New(fault.Invalid, "validate %s: %s", name, strings.Join(texts, "; ")), broken)
	}
	return fmt.Errorf("validate %s: %w", name, err) // a rule that cannot be evaluated is our fault
}
