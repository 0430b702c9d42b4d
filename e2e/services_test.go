package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// services of the node of a bed.
func services(b *bed.Bed) sandboxhostv1.ServiceHostServiceClient {
	return sandboxhostv1.NewServiceHostServiceClient(b.Conn("sandboxhost"))
}

// A service leads to the sandboxes with its labels as long as they run, from the node and
// from its neighbours and under its name, over the death of everything and a flush of the
// firewall; with nobody behind it refuses at once, and when it is removed nothing is left.
func TestNode_NET4_ServiceLeadsToWhoIsReady(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	wish := &sandboxhostv1.EnsureSandboxRequest{
		Uid: newUID(), Name: "server", Generation: 1, Manager: "local", Spec: spec(always, probe("c", "serve", "7000")),
		Labels: map[string]string{"app": "web", "tier": "1"},
	}
	wished := func(change func()) {
		t.Helper()
		change()
		if _, err := b.Host().EnsureSandbox(t.Context(), wish); err != nil {
			t.Fatal(err)
		}
	}
	wished(func() {})
	await(t, b, wish.GetUid(), "running", running)
	request := &sandboxhostv1.EnsureServiceRequest{
		Uid: newUID(), Name: "web", Generation: 1, Manager: "local", Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []*resourcev1.ServicePort{{Name: "http", Port: 80, TargetPort: 7000}},
		},
	}
	made, err := services(b).EnsureService(t.Context(), request)
	if err != nil || len(made.GetService().GetEndpoints()) != 1 || made.GetService().GetWish().GetAddress() != "10.78.0.1" {
		t.Fatalf("got %v, %v, want the first address, and one endpoint", made, err)
	}
	const at = "10.78.0.1:80"
	answers(t, b, "at first", at)
	neighbour := ensure(t, b, "neighbour", spec(always, probe("c", "ask", at, "hi")))
	names := ensure(t, b, "names", spec(always, probe("c", "resolve", "web.service.staddle.internal", "50ms")))
	bed.Eventually(t, waitLong, "the neighbour is answered", outputIs(t, b, neighbour, "c", 1, "answer hi\n"))
	await(t, b, names, "running", running)
	finds(t, b, names, "its address", "10.78.0.1")

	b.KillRunner(supervisor, true)
	b.Start()
	answersNow(t, b, at) // the rules stay, whoever dies
	b.WaitReady()
	answersNow(t, b, at)
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	answers(t, b, "after a flush", at)

	refuses := func(why string) {
		t.Helper()
		bed.Eventually(t, waitLong, "it refuses "+why, func(context.Context) (bool, string) {
			err := b.Connects("tcp", at)
			return errors.Is(err, syscall.ECONNREFUSED), fmt.Sprint(err)
		})
	}
	wished(func() { wish.Labels = map[string]string{"app": "other"} }) // of the same generation
	refuses("when the labels are others")
	if s := await(t, b, wish.GetUid(), "running", running); s.GetAttempt() != 1 {
		t.Errorf("other labels began attempt %d", s.GetAttempt())
	}
	wished(func() { wish.Labels = map[string]string{"app": "web"} })
	answers(t, b, "with the labels again", at)
	remove(t, b, wish.GetUid())
	refuses("when nobody is there")
	list, err := services(b).ListServices(t.Context(), &sandboxhostv1.ListServicesRequest{})
	if err != nil || len(list.GetServices()) != 1 || len(list.GetServices()[0].GetEndpoints()) != 0 {
		t.Errorf("got %v, %v, want it without endpoints", list, err)
	}
	for range 2 {
		if _, err := services(b).RemoveService(t.Context(), &sandboxhostv1.RemoveServiceRequest{Uid: request.GetUid(), Manager: "local"}); err != nil {
			t.Error(err)
		}
	}
	finds(t, b, names, "nothing", "none: lookup web")
	remove(t, b, neighbour)
	remove(t, b, names)
	settled(t, b)
}

// A sandbox behind a service, a node port and a published port sees which other sandbox comes,
// by tcp and by udp; only to itself it is the gateway, as programs on the node's loopback are.
// Group rules are about the same two sandboxes.
func TestNode_NET4_ASandboxSeesWhoComes(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: `network: {group_rules: [{from: shop, to: db}]}`})
	add := func(name, group string, change func(*resourcev1.SandboxSpec)) (namespace, address string) {
		t.Helper()
		s := spec(always, probe("c", "greet", "7000"))
		s.NetworkGroup = group
		if change != nil {
			change(s)
		}
		wish := &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: s, Labels: map[string]string{"app": name}}
		if _, err := b.Host().EnsureSandbox(t.Context(), wish); err != nil {
			t.Fatal(err)
		}
		return pinned(b, wish.GetUid()), await(t, b, wish.GetUid(), "running", running).GetAddresses()[0]
	}
	const udp = resourcev1.PortProtocol_PORT_PROTOCOL_UDP
	db, _ := add("db", "db", func(s *resourcev1.SandboxSpec) {
		s.PublishedPorts = []*resourcev1.PublishedPort{{HostPort: 18280, Port: 7000}, {HostPort: 18280, Port: 7000, Protocol: udp}}
	})
	peer, peerAt := add("peer", "db", nil)
	shop, shopAt := add("shop", "shop", nil)
	other, _ := add("other", "", nil)
	request := &sandboxhostv1.EnsureServiceRequest{
		Uid: newUID(), Name: "db", Generation: 1, Manager: "local", Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "db"}, Ports: []*resourcev1.ServicePort{
				{Name: "tcp", Port: 80, TargetPort: 7000, NodePort: 30180}, {Name: "udp", Port: 80, TargetPort: 7000, NodePort: 30180, Protocol: "udp"},
			},
		},
	}
	made, err := services(b).EnsureService(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	const gateway = "10.77.0.1"
	wrong := func() string {
		for what, at := range map[string]string{
			"service": made.GetService().GetWish().GetAddress() + ":80", "node port": gateway + ":30180", "published port": gateway + ":18280",
		} {
			for _, network := range []string{"tcp4", "udp4"} {
				for from, want := range map[string]string{peer: peerAt, shop: shopAt, db: gateway} {
					if got, err := b.AskFrom(from, network, at); err != nil || got != want {
						return fmt.Sprintf("%s by %s: it sees %q, %v, want %s", what, network, got, err, want)
					}
				}
				if got, err := b.AskFrom(other, network, at); err == nil {
					return fmt.Sprintf("%s by %s: another group is answered %q", what, network, got)
				}
			}
		}
		for _, at := range []string{"127.0.0.1:30180", "127.0.0.1:18280"} {
			if got, err := b.AskFrom(filepath.Join("/run/netns", b.NS), "tcp4", at); err != nil || got != gateway {
				return fmt.Sprintf("%s of the node: it sees %q, %v, want %s", at, got, err, gateway)
			}
		}
		return ""
	}
	bed.Eventually(t, waitLong, "everybody is seen", func(context.Context) (bool, string) {
		got := wrong()
		return got == "", got
	})
}

// answersNow demands an answer at the first try.
func answersNow(t *testing.T, b *bed.Bed, address string) {
	t.Helper()
	if wrong := echoes(b, address); wrong != "" {
		t.Errorf("no answer at %s: %s", address, wrong)
	}
}

// NET-5 and NET-9: a node port of a service leads to who is ready, also over loopback and
// from a neighbour, over the death of everything and a flush of the firewall; it is had
// once, a program's is refused with its name, and when the service is removed it is free.
func TestNode_NET9_NodePortIsHadOnce(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	wish := &sandboxhostv1.EnsureSandboxRequest{
		Uid: newUID(), Name: "server", Generation: 1, Manager: "local", Spec: spec(always, probe("c", "serve", "7000")),
		Labels: map[string]string{"app": "web"},
	}
	if _, err := b.Host().EnsureSandbox(t.Context(), wish); err != nil {
		t.Fatal(err)
	}
	await(t, b, wish.GetUid(), "running", running)
	request := func(name string, port uint32) *sandboxhostv1.EnsureServiceRequest {
		return &sandboxhostv1.EnsureServiceRequest{
			Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: &resourcev1.ServiceSpec{
				Selector: map[string]string{"app": "web"}, Ports: []*resourcev1.ServicePort{{Port: 80, TargetPort: 7000, NodePort: port}},
			},
		}
	}
	web := request("web", 30080)
	if _, err := services(b).EnsureService(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	const loop, gateway = "127.0.0.1:30080", "10.77.0.1:30080"
	answers(t, b, "at first", loop)
	answers(t, b, "at first", gateway)
	neighbour := ensure(t, b, "neighbour", spec(always, probe("c", "ask", gateway, "hi")))
	bed.Eventually(t, waitLong, "the neighbour is answered", outputIs(t, b, neighbour, "c", 1, "answer hi\n"))
	l := b.ListenAt("tcp", "127.0.0.1:30081")
	defer l.Close()
	refused := func(name string, port uint32, reason, owner string) {
		t.Helper()
		_, err := services(b).EnsureService(t.Context(), request(name, port))
		if fault.Reason(err) != reason || !strings.Contains(err.Error(), owner) {
			t.Errorf("got %v, want %s with %s", err, reason, owner)
		}
	}
	refused("other", 30080, "HOST_PORT_TAKEN", "service web has it")
	refused("other", 30081, "HOST_PORT_IN_USE", "in use by \"")
	second := ensure(t, b, "second", withPorts(spec(always, probe("c", "serve", "7000")), &resourcev1.PublishedPort{HostPort: 30080, Port: 7000}))
	held := func(s *resourcev1.SandboxStatus) bool { return strings.Contains(s.GetMessage(), "service web has it") }
	await(t, b, second, "refused", held)

	b.KillRunner(supervisor, true)
	b.Start()
	answersNow(t, b, loop) // the rules stay, whoever dies
	b.WaitReady()
	answersNow(t, b, loop)
	await(t, b, second, "refused still", held)
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	answers(t, b, "after a flush", loop)

	remove(t, b, wish.GetUid())
	bed.Eventually(t, waitLong, "it refuses when nobody is there", func(context.Context) (bool, string) {
		err := b.Connects("tcp", loop)
		return errors.Is(err, syscall.ECONNREFUSED), fmt.Sprint(err)
	})
	if _, err := services(b).RemoveService(t.Context(), &sandboxhostv1.RemoveServiceRequest{Uid: web.GetUid(), Manager: "local"}); err != nil {
		t.Fatal(err)
	}
	await(t, b, second, "running", running)
	answers(t, b, "from who waited for it", loop)
	remove(t, b, second)
	remove(t, b, neighbour)
	settled(t, b)
}
