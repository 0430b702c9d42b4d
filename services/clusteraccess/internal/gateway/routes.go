package gateway

import (
	"slices"
	"strings"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// self is the process that answers for the services of all processes where the
// caller names none.
const self = "clusteraccess"

// service is one entry of the allow-list.
type service struct {
	desc *grpc.ServiceDesc
	// process that serves it. Empty means that each does, and the caller names one
	// by metadata.
	process string
	// only are the methods that are on the list. Empty means all.
	only []string
}

// allowed is the allow-list: what is not here is not reached from outside. Who may
// call which of the methods stands at the method in its contract.
func allowed() []service {
	return []service{
		{desc: &presencev1.PresenceService_ServiceDesc, process: "presence"},
		{desc: &sandboxhostv1.ExecService_ServiceDesc, process: "sandboxhost"},
		{desc: &sandboxhostv1.CopyService_ServiceDesc, process: "sandboxhost"},
		{desc: &sandboxhostv1.ForwardService_ServiceDesc, process: "sandboxhost"},
		{desc: &sandboxhostv1.SandboxHostService_ServiceDesc, process: "sandboxhost", only: []string{"ReadLogs"}},
		{desc: &sandboxhostv1.StatsService_ServiceDesc, process: "sandboxhost"},
		{desc: &sandboxhostv1.EventService_ServiceDesc, process: "sandboxhost"},
		{desc: &processv1.ProcessService_ServiceDesc},
		{desc: &healthv1.Health_ServiceDesc},
		{desc: &reflectionv1.ServerReflection_ServiceDesc},
	}
}

// processes are those of a node: all with a socket on it but the coordinator, which
// has a door of its own.
func processes() []string {
	names := slices.DeleteFunc(config.Processes(), func(name string) bool { return name == "coordinator" })
	return append(names, "supervisor")
}

// routes says where calls go.
type routes struct {
	services  []service
	processes []string
}

// route is where one call goes.
type route struct {
	process string
	// endless is true for a method that answers with a stream, which may have no end
	// of its own.
	endless bool
}

// find decides where a call goes. named is what the caller wrote for the process. It
// is Denied for a service that is not listed, and Invalid for a process that does
// not exist or does not serve it.
func (r routes) find(fullMethod string, named []string) (route, error) {
	name, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	i := slices.IndexFunc(r.services, func(s service) bool { return s.desc.ServiceName == name })
	if i < 0 || len(r.services[i].only) > 0 && !slices.Contains(r.services[i].only, method) {
		return route{}, fault.WithReason(fault.New(fault.Denied, "forward %.200s: the gateway does not pass that on; it passes on %s",
			fullMethod, r.names()), "NOT_LISTED")
	}
	process, err := r.target(r.services[i], fullMethod, named)
	if err != nil {
		return route{}, err
	}
	endless := slices.ContainsFunc(r.services[i].desc.Streams, func(s grpc.StreamDesc) bool {
		return s.StreamName == method && s.ServerStreams
	})
	return route{process, endless}, nil
}

func (r routes) target(s service, fullMethod string, named []string) (string, error) {
	switch {
	case len(named) > 1:
		return "", fault.New(fault.Invalid, "forward %s: %s is given %d times", fullMethod, ProcessKey, len(named))
	case len(named) == 0 && s.process == "":
		return self, nil
	case len(named) == 0:
		return s.process, nil
	case !slices.Contains(r.processes, named[0]):
		return "", fault.New(fault.Invalid, "forward %s: %s %.40q is no process of a node; write one of %s",
			fullMethod, ProcessKey, named[0], strings.Join(r.processes, ", "))
	case s.process != "" && s.process != named[0]:
		return "", fault.New(fault.Invalid, "forward %s: it is served by %s, not by %s; leave %s out",
			fullMethod, s.process, named[0], ProcessKey)
	}
	return named[0], nil
}

func (r routes) names() string {
	names := make([]string, len(r.services))
	for i, s := range r.services {
		names[i] = s.desc.ServiceName
		if len(s.only) > 0 {
			names[i] += " (" + strings.Join(s.only, ", ") + ")"
		}
	}
	return strings.Join(names, ", ")
}
