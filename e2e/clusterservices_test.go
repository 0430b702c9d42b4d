package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const kindService = resourcev1.Kind_KIND_SERVICE

// serviceYAML is a service that leads port 80 to a port of the sandboxes with labels; more
// are further keys of its port.
func serviceYAML(name, labels, target, more string) string {
	return fmt.Sprintf("kind: Service\nname: %s\nspec:\n  selector: {%s}\n  ports:\n  - {port: 80, target_port: %s%s}\n---\n", name, labels, target, more)
}

// keptServices are the services of a node, by name.
func keptServices(ctx context.Context, b *bed.Bed) (map[string]*sandboxhostv1.ServiceState, error) {
	resp, err := services(b).ListServices(ctx, &sandboxhostv1.ListServicesRequest{PageSize: 1000})
	all := map[string]*sandboxhostv1.ServiceState{}
	for _, s := range resp.GetServices() {
		all[s.GetWish().GetName()] = s
	}
	return all, err
}

// awaitService waits until a node has a service of the cluster, or has it no more.
func awaitService(t *testing.T, b *bed.Bed, name string, there bool) {
	t.Helper()
	bed.Eventually(t, time.Minute, fmt.Sprintf("service %s is on the node: %t", name, there), func(ctx context.Context) (bool, string) {
		all, err := keptServices(ctx, b)
		return err == nil && (all[name].GetWish().GetManager() == "cluster") == there, fmt.Sprint(all, err)
	})
}

// health is what sandbox-agent says of one of its names.
func health(ctx context.Context, b *bed.Bed, name string) string {
	r, err := grpc_health_v1.NewHealthClient(b.Conn("sandbox-agent")).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
	if err != nil {
		return err.Error()
	}
	return r.GetStatus().String()
}

func awaitHealth(t *testing.T, b *bed.Bed, name, want string) {
	t.Helper()
	bed.Eventually(t, time.Minute, name+" is "+want, func(ctx context.Context) (bool, string) {
		got := health(ctx, b, name)
		return got == want, got
	})
}

// A service of the cluster has one address, which leads to sandboxes of the cluster on
// their node, under its name, while the coordinator is away and over the death of all
// processes; one that is deleted while the node is away goes when it is back.
func TestNode_NET4_ServiceOfTheCluster(t *testing.T) {
	far, b, supervisor := joined(t, bed.Options{Node: shortSession})
	labelled := strings.Replace(sandboxYAML("server", "serve, \"7000\"", ""), "name: server\n", "name: server\nlabels: {app: web}\n", 1)
	asks := strings.Replace(sandboxYAML("names", "resolve, web.service.staddle.internal, 50ms", ""), "name: main", "name: c", 1)
	apply(t, far, labelled+asks+
		serviceYAML("web", "app: web", "7000", ", node_port: 30080")+serviceYAML("brief", "app: web", "7000", "")+
		serviceYAML("left", "app: web", "7000", ", node_port: 30091")+serviceYAML("right", "app: web", "7000", ", node_port: 30092")+
		"kind: Service\nname: pool\nspec: {selector: {app: web}, headless: true, ports: [{port: 7000}]}\n---\n"+
		strings.NewReplacer("name: names", "name: poolnames", "web.service", "pool.service").Replace(asks))
	awaitPhase(t, far, "server", "RUNNING")
	awaitPhase(t, far, "names", "RUNNING")
	address := get(t, far, kindService, "web").GetService().GetPlacement().GetAddress()
	at, brief := address+":80", get(t, far, kindService, "brief").GetService().GetPlacement().GetAddress()+":80"
	answers(t, b, "at its address", at)
	answers(t, b, "at the port of the node", "127.0.0.1:30080")
	answers(t, b, "at the other's address", brief)
	names := onHost(t, b, "names").GetUid()
	finds(t, b, names, "the address of the service", address)
	awaitPhase(t, far, "poolnames", "RUNNING")
	poolNames := onHost(t, b, "poolnames").GetUid()
	finds(t, b, poolNames, "the address of the sandbox", onHost(t, b, "server").GetStatus().GetAddresses()[0])
	if out := far.OK("describe", "service", "web"); !strings.Contains(out, address) || !strings.Contains(out, "server") || strings.Contains(out, "names") {
		t.Errorf("described as\n%s", out)
	}
	if r := b.CLI("service", "rm", "web"); r.Code != 6 || !strings.Contains(r.Stderr, "staddle delete service web") {
		t.Errorf("rm on the node: exit code %d\n%s", r.Code, r.Stderr)
	}

	far.Kill("coordinator")
	b.Cut()
	b.KillRunner(supervisor, true)
	b.Start()
	b.WaitComponents()
	answers(t, b, "without a coordinator", at)
	far.WaitReady()
	far.OK("delete", "service", "brief")
	awaitService(t, b, "brief", true)
	for _, swap := range []struct{ name, port string }{{"left", "30093"}, {"right", "30091"}, {"left", "30092"}} {
		apply(t, far, serviceYAML(swap.name, "app: web", "7000", ", node_port: "+swap.port))
	}
	b.Mend()
	b.WaitReady()
	awaitService(t, b, "brief", false)
	bed.Eventually(t, time.Minute, "both have each other's port of the node", func(ctx context.Context) (bool, string) {
		all, err := keptServices(ctx, b)
		port := func(name string) uint32 {
			ports := all[name].GetWish().GetSpec().GetPorts()
			return append(ports, &resourcev1.ServicePort{})[0].GetNodePort()
		}
		return err == nil && port("left") == 30092 && port("right") == 30091, fmt.Sprint(all, err)
	})
	answers(t, b, "at a port that was another's", "127.0.0.1:30091")
	refusesAt(t, b, brief)
	answers(t, b, "when the other is gone", at)

	apply(t, far, serviceYAML("web", "app: web", "7001", ", node_port: 30080"))
	refusesAt(t, b, at) // nobody listens there
	apply(t, far, serviceYAML("web", "app: web", "7000", ""))
	answers(t, b, "after a change", at)
	refusesAt(t, b, "127.0.0.1:30080")
	far.OK("delete", "service", "web")
	awaitService(t, b, "web", false)
	refusesAt(t, b, at)
	finds(t, b, names, "nothing", "none: lookup web")
	far.OK("delete", "sandbox", "server")
	finds(t, b, poolNames, "nobody", "none: lookup pool")
	far.OK("delete", "service", "pool", "left", "right")
	awaitService(t, b, "pool", false)
	far.OK("delete", "sandbox", "names", "poolnames")
	settled(t, b)
}

func refusesAt(t *testing.T, b *bed.Bed, address string) {
	t.Helper()
	bed.Eventually(t, waitLong, address+" refuses", func(context.Context) (bool, string) {
		err := b.Connects("tcp", address)
		return errors.Is(err, syscall.ECONNREFUSED), fmt.Sprint(err)
	})
}

// All nodes have a service at the same address, and each leads to its own sandboxes: one
// without any refuses, until it has one.
func TestNode_NET4_ServiceIsTheSameOnAllNodes(t *testing.T) {
	far, first, _ := joined(t, bed.Options{})
	second := bed.New(t, bed.Options{Cluster: far, Name: bed.SecondNode})
	second.Start()
	second.WaitReady()
	importProbe(t, second)
	server := func(name, node string) string {
		return fmt.Sprintf("kind: Sandbox\nname: %s\nlabels: {app: web}\nspec:\n  node_selector: {where: %s}\n  containers:\n    - {name: main, image: %q, args: [serve, \"7000\"]}\n---\n",
			name, node, bed.ProbeImage)
	}
	for _, node := range []string{bed.NodeName, bed.SecondNode} {
		apply(t, far, fmt.Sprintf("kind: Node\nname: %s\nlabels: {where: %s}\n", node, node))
	}
	apply(t, far, serviceYAML("web", "app: web", "7000", "")+server("here", bed.NodeName))
	at := get(t, far, kindService, "web").GetService().GetPlacement().GetAddress() + ":80"
	awaitPhase(t, far, "here", "RUNNING")
	answers(t, first, "on its own node", at)
	awaitService(t, second, "web", true)
	refusesAt(t, second, at)
	apply(t, far, server("there", bed.SecondNode))
	awaitPhase(t, far, "there", "RUNNING")
	answers(t, second, "on the other node", at)
	far.OK("delete", "service", "web")
	for _, b := range []*bed.Bed{first, second} {
		awaitService(t, b, "web", false)
	}
	far.OK("delete", "sandbox", "here", "there")
	settled(t, first)
	settled(t, second)
}

// A service that a node does not take hinders no other: the node says so, and takes it
// when what was in its way is gone.
func TestMachine_ServiceThatANodeRefuses(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("service", "create", "web", "--selector", "app=local", "--port", "80", "--node-port", "80=30080")
	apply(t, b, serviceYAML("web", "app: web", "7000", "")+serviceYAML("port", "app: web", "7000", ", node_port: 30080")+serviceYAML("other", "app: web", "7000", ""))
	awaitService(t, b, "other", true)
	awaitHealth(t, b, "services", "NOT_SERVING")
	for _, name := range []string{"web", "port"} {
		awaitService(t, b, name, false)
	}
	bed.Eventually(t, waitLong, "the reasons are logged", func(context.Context) (bool, string) {
		text := b.Logs()["sandbox-agent"]
		return strings.Contains(text, "the name belongs to service") && strings.Contains(text, "service web has it"), text
	})
	b.OK("service", "rm", "web")
	awaitService(t, b, "web", true)
	awaitService(t, b, "port", true)
	awaitHealth(t, b, "services", "SERVING")
	b.OK("delete", "service", "web", "port", "other")
	awaitService(t, b, "other", false)
	settled(t, b)
}

// ETC-10: every field of a service goes to zero and back through the API, and what the
// command line prints of that makes the same record when it is applied.
func TestCoordinator_ETC10_ZeroOfEveryServiceField(t *testing.T) {
	b := coordinatorAlone(t)
	whole := &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindService, Name: "full", Labels: map[string]string{"a": "1"}},
		Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Affinity: durationpb.New(time.Minute), Address: "10.78.128.9",
			Ports: []*resourcev1.ServicePort{
				{Name: "http", Protocol: "udp", Port: 80, TargetPort: 8080, NodePort: 30080, NodeAddress: "127.0.0.1"}, {Name: "other", Port: 81},
			},
		}}},
	}
	needed := []string{"ServiceSpec.selector", "ServiceSpec.ports", "ServiceSpec.affinity of 0s", "ServicePort.port", "ServicePort.node_port"}
	for _, v := range variants(t, whole, "ServiceSpec.headless") { // which never changes
		if _, err := b.Records().CreateResource(t.Context(), &coordinatorv1.CreateResourceRequest{Resource: proto.CloneOf(whole)}); err != nil {
			t.Fatal(err)
		}
		err := update(t.Context(), b, v.record)
		if slices.Contains(needed, v.field) {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%s taken away: got %v, want Invalid", v.field, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", v.field, err)
		} else {
			sameAsAsked(t, v.field+" by the API", get(t, b, kindService, "full"), v.record)
			printed := dropKeys(b.OK("get", "service", "full", "-o", "yaml"))
			if err := update(t.Context(), b, whole); err != nil {
				t.Errorf("%s back: %v", v.field, err)
			}
			sameAsAsked(t, v.field+" set again", get(t, b, kindService, "full"), whole)
			b.OK("delete", "service", "full")
			apply(t, b, printed)
			sameAsAsked(t, v.field+" by apply", get(t, b, kindService, "full"), v.record)
		}
		b.OK("delete", "service", "full")
	}
}
