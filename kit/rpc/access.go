package rpc

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
)

// method is what the contracts say about one method.
type method struct {
	access      *optionsv1.AccessRule // nil: nobody may call it
	readOnly    bool                  // no side effects
	repeatable  bool                  // no side effects, or idempotent
	streaming   bool                  // either side
	forEveryone bool                  // any role at all
}

// contracts reads every method of ours, and of gRPC itself, that is linked into this
// binary, by full name. Of other services nothing is known, as of one that there is not.
var contracts = sync.OnceValues(func() (map[string]method, error) {
	return readContracts(protoregistry.GlobalFiles)
})

// readContracts fails on a rule that names no role: it would read as a rule and
// let nobody in.
func readContracts(files *protoregistry.Files) (map[string]method, error) {
	out := map[string]method{}
	var err error
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !ours(f.Package()) { // to look at one would unfold it, and keep it so
			return true
		}
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				md := methods.Get(j)
				name := fmt.Sprintf("/%s/%s", md.Parent().FullName(), md.Name())
				m := readMethod(md)
				if m.access != nil && namesNobody(m.access) {
					err = fmt.Errorf("read contract of %s: its access rule names ROLE_UNSPECIFIED", name)
				}
				out[name] = m
			}
		}
		return err == nil
	})
	return out, err
}

// ours reports whether a package has services that we serve.
func ours(pkg protoreflect.FullName) bool {
	return strings.HasPrefix(string(pkg), "staddle.") || forEveryone(string(pkg)+".")
}

func namesNobody(r *optionsv1.AccessRule) bool {
	return slices.Contains(slices.Concat(r.GetLocal(), r.GetRemote()), optionsv1.Role_ROLE_UNSPECIFIED)
}

func readMethod(md protoreflect.MethodDescriptor) method {
	m := method{streaming: md.IsStreamingClient() || md.IsStreamingServer()}
	if forEveryone(string(md.Parent().FullName())) {
		return method{streaming: m.streaming, forEveryone: true, readOnly: true, repeatable: true}
	}
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || opts == nil {
		return m
	}
	if proto.HasExtension(opts, optionsv1.E_Access) {
		m.access, _ = proto.GetExtension(opts, optionsv1.E_Access).(*optionsv1.AccessRule) // the type is generated
	}
	level := opts.GetIdempotencyLevel()
	m.readOnly = level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	m.repeatable = m.readOnly || level == descriptorpb.MethodOptions_IDEMPOTENT
	return m
}

// forEveryone are the services of gRPC itself, which carry no rule of ours.
func forEveryone(service string) bool {
	return strings.HasPrefix(service, "grpc.health.") || strings.HasPrefix(service, "grpc.reflection.")
}

// MethodsWithoutRule lists the methods of our own packages linked into this
// binary that no caller can ever call, for the test that there is none.
func MethodsWithoutRule() []string {
	all, err := contracts()
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for name, m := range all {
		if strings.HasPrefix(name, "/staddle.") && len(m.access.GetLocal()) == 0 && len(m.access.GetRemote()) == 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// service returns the service of a full method name.
func service(fullMethod string) string {
	s, _, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	return s
}
