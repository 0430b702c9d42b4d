package validate

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"staddle.internal/kit/fault"
)

// sandbox is a message with a required name and containers that need an image.
func sandbox(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	text := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		opts := &descriptorpb.FieldOptions{}
		proto.SetExtension(opts, validate.E_Field, &validate.FieldRules{
			Type: &validate.FieldRules_String_{String_: &validate.StringRules{MinLen: proto.Uint64(1), MaxLen: proto.Uint64(8)}},
		})
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Options: opts,
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("kittest/validate.proto"), Package: proto.String("kittest"), Syntax: proto.String("proto3"),
		Dependency: []string{"buf/validate/validate.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Container"), Field: []*descriptorpb.FieldDescriptorProto{text("image", 1)}},
			{Name: proto.String("Sandbox"), Field: []*descriptorpb.FieldDescriptorProto{text("name", 1), {
				Name: proto.String("containers"), Number: proto.Int32(2), TypeName: proto.String(".kittest.Container"),
				Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(),
			}}},
		},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Sandbox")
}

func message(md protoreflect.MessageDescriptor, name string, images ...string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(md)
	m.Set(md.Fields().ByName("name"), protoreflect.ValueOfString(name))
	list := m.Mutable(md.Fields().ByName("containers")).List()
	for _, image := range images {
		c := list.NewElement()
		c.Message().Set(c.Message().Descriptor().Fields().ByName("image"), protoreflect.ValueOfString(image))
		list.Append(c)
	}
	return m
}

func TestNew_ReportsAllViolationsAtOnce(t *testing.T) {
	md := sandbox(t)
	i, err := New(dynamicpb.NewMessage(md))
	if err != nil {
		t.Fatal(err)
	}
	reached := false
	handler := func(context.Context, any) (any, error) { reached = true; return "answer", nil }

	_, err = i.Unary(t.Context(), message(md, "much too long", "fine", ""), &grpc.UnaryServerInfo{}, handler)
	if fault.KindOf(err) != fault.Invalid || reached {
		t.Fatalf("got %v, handler reached %v", err, reached)
	}
	checkViolations(t, err)
	checkViolations(t, fault.FromStatus(fault.ToStatus(err))) // on the other side

	answer, err := i.Unary(t.Context(), message(md, "good", "fine"), &grpc.UnaryServerInfo{}, handler)
	if err != nil || answer != "answer" {
		t.Errorf("valid request: %v, %v", answer, err)
	}
}

// checkViolations wants both problems, in the text and as details.
func checkViolations(t *testing.T, err error) {
	t.Helper()
	for _, part := range []string{"kittest.Sandbox", "name: ", "containers[1].image: "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
	var paths []string
	for _, d := range fault.Details(err) {
		if v, ok := d.(*validate.Violations); ok {
			for _, violation := range v.GetViolations() {
				paths = append(paths, protovalidate.FieldPathString(violation.GetField()))
			}
		}
	}
	if want := []string{"name", "containers[1].image"}; !slices.Equal(paths, want) {
		t.Errorf("details name %v, want %v", paths, want)
	}
}

// fakeStream hands out one message.
type fakeStream struct {
	grpc.ServerStream
	fill func(m any)
}

func (s *fakeStream) RecvMsg(m any) error { s.fill(m); return nil }

func TestNew_ChecksMessagesOfStreams(t *testing.T) {
	md := sandbox(t)
	i, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ss := &fakeStream{fill: func(m any) { proto.Merge(m.(proto.Message), message(md, "", "fine")) }}
	err = i.Stream(nil, ss, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
		return ss.RecvMsg(dynamicpb.NewMessage(md))
	})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "name: ") {
		t.Errorf("got %v", err)
	}
}

// A stream that ends, or sends what is no message, is handed on as it is.
func TestNew_LeavesOtherThingsOfStreamsAlone(t *testing.T) {
	i, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for name, receive := range map[string]func(ss grpc.ServerStream) error{
		"end":       func(ss grpc.ServerStream) error { return ss.RecvMsg(dynamicpb.NewMessage(sandbox(t))) },
		"raw bytes": func(ss grpc.ServerStream) error { return ss.RecvMsg(new([]byte)) },
	} {
		ended := &endedStream{err: io.EOF}
		if name == "raw bytes" {
			ended.err = nil
		}
		err := i.Stream(nil, ended, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error { return receive(ss) })
		if err != ended.err { //nolint:errorlint // the very same
			t.Errorf("%s: got %v, want %v", name, err, ended.err)
		}
	}
}

// endedStream receives nothing more.
type endedStream struct {
	grpc.ServerStream
	err error
}

func (s *endedStream) RecvMsg(any) error { return s.err }

// Only the check's own answer is about the request.
func TestNew_LeavesErrorsOfHandlersAlone(t *testing.T) {
	md := sandbox(t)
	i, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{fault.New(fault.Conflict, "stale"), status.Error(codes.InvalidArgument, "of another server")} {
		_, err := i.Unary(t.Context(), message(md, "good", "fine"), &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, want })
		if err != want { //nolint:errorlint // the very same
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// A rule that cannot be evaluated is a fault of ours, never the caller's.
func TestNew_BrokenRuleIsInternal(t *testing.T) {
	md := brokenRule(t)
	i, err := New()
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Unary(t.Context(), dynamicpb.NewMessage(md), &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
	if fault.KindOf(err) != fault.Internal || !strings.Contains(err.Error(), "validate kittest.Odd") {
		t.Errorf("got %v, want an internal error that names the message", err)
	}
}

// brokenRule is a message whose rule does not compile.
func brokenRule(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	opts := &descriptorpb.MessageOptions{}
	proto.SetExtension(opts, validate.E_Message, &validate.MessageRules{
		Cel: []*validate.Rule{{Id: proto.String("odd"), Expression: proto.String("this.nothing > 1")}},
	})
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("kittest/odd.proto"), Package: proto.String("kittest"), Syntax: proto.String("proto3"),
		Dependency:  []string{"buf/validate/validate.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Odd"), Options: opts}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Odd")
}

func TestNew_LeavesRawBytesAlone(t *testing.T) {
	i, err := New()
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Unary(t.Context(), []byte("raw"), &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
	if err != nil {
		t.Error(err)
	}
}
