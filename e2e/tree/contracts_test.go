package tree

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"staddle.internal/kit/rpc"

	// Every contract is linked, for what it says of itself.
	_ "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	_ "staddle.internal/proto/gen/staddle/coordinator/v1"
	_ "staddle.internal/proto/gen/staddle/presence/v1"
	_ "staddle.internal/proto/gen/staddle/process/v1"
	_ "staddle.internal/proto/gen/staddle/resource/v1"
	_ "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	_ "staddle.internal/proto/gen/staddle/storage/v1"
	_ "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// contracts calls visit with each of our own files.
func contracts(t *testing.T, visit func(protoreflect.FileDescriptor)) {
	t.Helper()
	seen := map[string]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "staddle.") {
			seen["proto/"+f.Path()] = true
			visit(f)
		}
		return true
	})
	for _, file := range open(t).matching(".proto") {
		if !seen[file] {
			t.Errorf("%s is not looked at: import its package here", file)
		}
	}
}

func methods(f protoreflect.FileDescriptor, visit func(protoreflect.MethodDescriptor)) {
	for i := range f.Services().Len() {
		all := f.Services().Get(i).Methods()
		for j := range all.Len() {
			visit(all.Get(j))
		}
	}
}

// comment is what stands right above a method in its file: descriptors in a
// binary carry no comments.
func comment(t *testing.T, text string, m protoreflect.MethodDescriptor) string {
	t.Helper()
	above := regexp.MustCompile(`((?:[ \t]*//[^\n]*\n)*)[ \t]*rpc ` + string(m.Name()) + `\(`).FindStringSubmatch(text)
	if above == nil {
		t.Fatalf("%s does not hold rpc %s", m.ParentFile().Path(), m.Name())
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(above[1], "//", " ")), " ")
}

// repeating is how a comment says what a second call does.
var repeating = regexp.MustCompile(`[Rr]epeat`)

func TestContracts_SayWhetherToRepeat(t *testing.T) {
	r := open(t)
	contracts(t, func(f protoreflect.FileDescriptor) {
		methods(f, func(m protoreflect.MethodDescriptor) {
			about := comment(t, r.read(t, "proto/"+f.Path()), m)
			if !repeating.MatchString(about) {
				t.Errorf("the comment of %s does not say whether repeating it is safe: %q", m.FullName(), about)
			}
			opts, ok := m.Options().(*descriptorpb.MethodOptions)
			if !ok {
				t.Fatalf("options of %s are %T", m.FullName(), m.Options())
			}
			safe := strings.Contains(about, "Safe to repeat")
			marked := opts.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
			if safe != marked {
				t.Errorf("%s: the comment says safe to repeat: %t, and idempotency_level says it: %t", m.FullName(), safe, marked)
			}
		})
	})
}

func TestContracts_HaveAccessRules(t *testing.T) {
	contracts(t, func(protoreflect.FileDescriptor) {})
	if without := rpc.MethodsWithoutRule(); len(without) > 0 {
		t.Errorf("no caller can ever call %v: write who may", without)
	}
}

// units are the endings of names that tell a unit, with what they may be.
var units = map[string][]protoreflect.Kind{
	"_bytes":      {protoreflect.Int64Kind, protoreflect.Uint64Kind, protoreflect.Uint32Kind},
	"_millicores": {protoreflect.Int64Kind, protoreflect.Uint64Kind, protoreflect.Uint32Kind, protoreflect.Int32Kind},
}

// times are the endings of names that tell a message of time. A point in time is
// a length where it counts from the boot: the wall clock may be set meanwhile.
var times = map[string][]protoreflect.FullName{
	"_at":      {"google.protobuf.Timestamp", "google.protobuf.Duration"},
	"_timeout": {"google.protobuf.Duration"},
	"_period":  {"google.protobuf.Duration"},
}

func TestContracts_NamesTellUnits(t *testing.T) {
	contracts(t, func(f protoreflect.FileDescriptor) {
		for i := range f.Messages().Len() {
			fields := f.Messages().Get(i).Fields()
			for j := range fields.Len() {
				checkField(t, fields.Get(j))
			}
		}
	})
}

func checkField(t *testing.T, f protoreflect.FieldDescriptor) {
	t.Helper()
	name := string(f.Name())
	for ending, kinds := range units {
		if strings.HasSuffix(name, ending) && !slices.Contains(kinds, f.Kind()) {
			t.Errorf("%s is %s, want an integer", f.FullName(), f.Kind())
		}
	}
	for ending, messages := range times {
		if strings.HasSuffix(name, ending) && (f.Message() == nil || !slices.Contains(messages, f.Message().FullName())) {
			t.Errorf("%s is %s, want one of %v", f.FullName(), f.Kind(), messages)
		}
	}
	for _, ending := range []string{"_secs", "_seconds", "_ms", "_millis"} {
		if strings.HasSuffix(name, ending) {
			t.Errorf("%s tells a length of time by its name, want a google.protobuf.Duration", f.FullName())
		}
	}
}
