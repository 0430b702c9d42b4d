package gateway

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"staddle.internal/kit/fault"
	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
)

func TestRoutes_Find(t *testing.T) {
	r := routes{services: allowed(), processes: processes()}
	for _, c := range []struct {
		method string
		named  []string
		want   route
		kind   fault.Kind
	}{
		{"/staddle.presence.v1.PresenceService/GetPresence", nil, route{"presence", false}, 0},
		{"/staddle.presence.v1.PresenceService/GetPresence", []string{"presence"}, route{"presence", false}, 0},
		{"/staddle.presence.v1.PresenceService/WatchPresence", nil, route{"presence", true}, 0},
		{"/staddle.presence.v1.PresenceService/OfTheFuture", nil, route{"presence", false}, 0},
		{"/staddle.sandboxhost.v1.StatsService/GetStats", nil, route{"sandboxhost", false}, 0},
		{"/staddle.sandboxhost.v1.EventService/ReadEvents", nil, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.StatsService/WatchStats", []string{"sandboxhost"}, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.SandboxHostService/ListSandboxes", []string{"sandboxhost"}, route{}, fault.Denied},
		{"/staddle.presence.v1.PresenceService/GetPresence", []string{"storage"}, route{}, fault.Invalid},
		{"/staddle.sandboxhost.v1.SandboxHostService/ReadLogs", nil, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.SandboxHostService/EnsureSandbox", nil, route{}, fault.Denied},
		{"/staddle.sandboxhost.v1.ExecService/Exec", nil, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.ForwardService/Forward", nil, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.CopyService/CopyOut", nil, route{"sandboxhost", true}, 0},
		{"/staddle.sandboxhost.v1.CopyService/CopyIn", nil, route{"sandboxhost", false}, 0},
		{"/staddle.sandboxhost.v1.SandboxHostService/ListSandboxes", nil, route{}, fault.Denied},
		{"/staddle.process.v1.ProcessService/GetStatus", nil, route{"clusteraccess", false}, 0},
		{"/staddle.process.v1.ProcessService/GetStatus", []string{"supervisor"}, route{"supervisor", false}, 0},
		{"/grpc.health.v1.Health/Watch", []string{"sandboxhost"}, route{"sandboxhost", true}, 0},
		{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", []string{"storage-agent"}, route{"storage-agent", true}, 0},
		{"/grpc.health.v1.Health/Check", []string{"coordinator"}, route{}, fault.Invalid},
		{"/grpc.health.v1.Health/Check", []string{"../containerd"}, route{}, fault.Invalid},
		{"/grpc.health.v1.Health/Check", []string{""}, route{}, fault.Invalid},
		{"/grpc.health.v1.Health/Check", []string{"storage", "presence"}, route{}, fault.Invalid},
		{"/staddle.storage.v1.StorageService/ListVolumes", nil, route{}, fault.Denied},
		{"/staddle.storage.v1.StorageService/ListVolumes", []string{"storage"}, route{}, fault.Denied},
		{"/staddle.presence.v1.PresenceService.Evil/GetPresence", nil, route{}, fault.Denied},
		{"//GetPresence", nil, route{}, fault.Denied},
	} {
		got, err := r.find(c.method, c.named)
		if got != c.want || fault.KindOf(err) != c.kind {
			t.Errorf("%s %q: got %v, %v, want %v, %v", c.method, c.named, got, err, c.want, c.kind)
		}
	}
}

// What is on the list and may be called by nobody from outside does not belong there.
func TestAllowed_EveryServiceOfOursHasMethodsForOthers(t *testing.T) {
	for _, s := range allowed() {
		if !strings.HasPrefix(s.desc.ServiceName, "staddle.") {
			continue // of grpc itself: it has no rules of ours
		}
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(s.desc.ServiceName))
		if err != nil {
			t.Fatal(err)
		}
		methods := found.(protoreflect.ServiceDescriptor).Methods()
		open := 0
		for i := range methods.Len() {
			rule := proto.GetExtension(methods.Get(i).Options(), optionsv1.E_Access).(*optionsv1.AccessRule)
			if slices.Contains(rule.GetRemote(), optionsv1.Role_ROLE_OPERATOR) {
				open++
			}
		}
		if open == 0 {
			t.Errorf("%s is on the list, and no operator may call it from outside", s.desc.ServiceName)
		}
	}
}
