package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	rules "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/rpc/validate/words"
)

// What our servers take of every message in the contracts is what the library takes
// when it is made as it comes.
func TestRules_SameAsTheLibrarys(t *testing.T) {
	t.Parallel()
	plain, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	var all []protoreflect.MessageType
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if strings.HasPrefix(string(mt.Descriptor().FullName()), "staddle.") && !mt.Descriptor().IsMapEntry() {
			all = append(all, mt)
			_ = plain.Validate(mt.New().Interface()) // it compiles its rules before ours tell the language of the files
		}
		return true
	})
	broken := 0
	for _, mt := range all {
		ours, err := validate.New(mt.New().Interface())
		if err != nil {
			t.Errorf("%s: %v", mt.Descriptor().FullName(), err)
			continue
		}
		random := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			m := mt.New()
			fill(random, m, 3)
			broken += compare(t, plain, ours.Unary, m.Interface())
		}
	}
	if broken < 100 {
		t.Errorf("only %d messages broke a rule: the test tries too little", broken)
	}
}

// compare returns 1 if the message breaks a rule.
func compare(t *testing.T, plain protovalidate.Validator, ours grpc.UnaryServerInterceptor, m proto.Message) int {
	t.Helper()
	_, got := ours(t.Context(), m, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
	want := plain.Validate(m)
	refused, isRefusal := errors.AsType[*protovalidate.ValidationError](want)
	if want != nil && !isRefusal {
		t.Fatalf("%s: %v", m.ProtoReflect().Descriptor().FullName(), want)
	}
	if (want == nil) != (got == nil) || got != nil && !errors.Is(got, fault.Invalid) {
		t.Fatalf("%v: got %v, want %v", m, got, want)
	}
	if !isRefusal {
		return 0
	}
	for _, v := range refused.Violations {
		want := protovalidate.FieldPathString(v.Proto.GetField()) + ": " + words.Of(v.Proto)
		if v.Proto.GetField() == nil {
			want = words.Of(v.Proto)
		}
		if !strings.Contains(got.Error(), want) {
			t.Fatalf("%v: got %v, want it to contain %q", m, got, want)
		}
	}
	return 1
}

// fill sets about half of all fields to something, down to a depth.
func fill(random *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsMap() || random.IntN(2) == 0 || f.Message() != nil && depth == 0 {
			continue
		}
		if !f.IsList() {
			m.Set(f, value(random, f, m.NewField(f), depth))
			continue
		}
		list := m.Mutable(f).List()
		for range random.IntN(3) {
			list.Append(value(random, f, list.NewElement(), depth))
		}
	}
}

// value is a random one of a field's kind; empty is one of that kind.
func value(random *rand.Rand, f protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) protoreflect.Value {
	text := []string{"", "a", "web-1", "/a/b", "no name", "01J8Z3Y7Q9V5K2M4N6P8R0S1T3", strings.Repeat("x", 300), "10.0.0.1"}[random.IntN(8)]
	number := []int64{0, 1, 80, 1 << 20, 1 << 30}[random.IntN(5)]
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		fill(random, empty.Message(), depth-1)
		return empty
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(text))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(number % 100))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-number)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	}
	return empty
}

// Nobody is shown a pattern: each of the contracts is told in words.
func TestRules_PatternsAreTold(t *testing.T) {
	t.Parallel()
	patterns := map[string]bool{}
	var collect func(r *rules.FieldRules)
	collect = func(r *rules.FieldRules) {
		if r == nil {
			return
		}
		if s := r.GetString(); s.HasPattern() {
			patterns[s.GetPattern()] = true
		}
		collect(r.GetRepeated().GetItems())
		collect(r.GetMap().GetKeys())
		collect(r.GetMap().GetValues())
	}
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if !strings.HasPrefix(string(mt.Descriptor().FullName()), "staddle.") {
			return true
		}
		fields := mt.Descriptor().Fields()
		for i := range fields.Len() {
			r, err := protovalidate.ResolveFieldRules(fields.Get(i))
			if err != nil {
				t.Errorf("%s: %v", fields.Get(i).FullName(), err)
			}
			collect(r)
		}
		return true
	})
	if len(patterns) < 20 {
		t.Errorf("%d patterns were found: the test looks at too little", len(patterns))
	}
	for p := range patterns {
		message := "does not match regex pattern `" + p + "`" // as the library says it
		if got := words.Of(&rules.Violation{Message: &message}); got == message {
			t.Errorf("%s has no words", p)
		}
	}
}
