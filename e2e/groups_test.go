package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Sandboxes of two network groups are apart, but for what node.yaml opens, at their addresses
// as by a service and a published port; while sandboxhost is away, over the death of
// everything, and again after a flush of the firewall. A neighbour of the same group is
// reached all the time.
func TestNode_NetworkGroupsAreApart(t *testing.T) {
	b, supervisor := alone(t, bed.Options{Node: `network: {group_rules: [{from: watch, to: db, ports: [tcp/7000]}]}`})
	in := func(name, group string, change func(*resourcev1.SandboxSpec)) (uid, address string) {
		t.Helper()
		s := spec(always, probe("c", "serve", "7000"))
		s.NetworkGroup = group
		if change != nil {
			change(s)
		}
		uid = newUID()
		_, err := b.Host().EnsureSandbox(t.Context(), &sandboxhostv1.EnsureSandboxRequest{
			Uid: uid, Name: name, Generation: 1, Manager: "local", Spec: s, Labels: map[string]string{"app": name},
		})
		if err != nil {
			t.Fatal(err)
		}
		return uid, await(t, b, uid, "running", running).GetAddresses()[0] + ":7000"
	}
	for _, name := range []string{"Shop", "-shop", "shop-", "a_b", "*", strings.Repeat("a", 64)} {
		s := spec(always, probe("c", "sleep"))
		s.NetworkGroup = name
		_, err := b.Host().EnsureSandbox(t.Context(), &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: "bad", Generation: 1, Manager: "local", Spec: s})
		if !errors.Is(err, fault.Invalid) || !strings.Contains(fmt.Sprint(err), "network_group: write at most 63") {
			t.Errorf("group %q: got %v, want to be told what to write", name, err)
		}
	}
	db, dbAt := in("db", "db", func(s *resourcev1.SandboxSpec) {
		s.PublishedPorts = []*resourcev1.PublishedPort{{HostPort: 18180, Port: 7000}}
	})
	replica, replicaAt := in("replica", "db", nil)
	web, webAt := in("web", "web", nil)
	watch, _ := in("watch", "watch", nil)
	plain, plainAt := in("plain", "", nil)
	request := &sandboxhostv1.EnsureServiceRequest{
		Uid: newUID(), Name: "db", Generation: 1, Manager: "local", Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "db"}, Ports: []*resourcev1.ServicePort{{Port: 80, TargetPort: 7000}},
		},
	}
	made, err := services(b).EnsureService(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	const published = "10.77.0.1:18180"
	service := made.GetService().GetWish().GetAddress() + ":80"
	wrong := func() string {
		for _, c := range []struct {
			from, to string
			want     bool
		}{
			{replica, dbAt, true}, {replica, service, true}, {replica, published, true}, {db, replicaAt, true}, {db, service, true},
			{web, dbAt, false}, {web, replicaAt, false}, {web, service, false}, {web, published, false},
			{plain, dbAt, false}, {web, plainAt, false}, {db, webAt, false}, {db, plainAt, false},
			{watch, dbAt, true}, {watch, service, true}, {watch, webAt, false},
		} {
			err := b.ConnectsFrom(pinned(b, c.from), "tcp4", c.to)
			if c.want && err != nil || !c.want && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EHOSTUNREACH) {
				return fmt.Sprintf("from %s to %s: got %v, want it reached: %t", c.from, c.to, err, c.want)
			}
		}
		if err := errors.Join(b.Connects("tcp4", dbAt), b.Connects("tcp4", service)); err != nil {
			return "from the node: " + err.Error()
		}
		return ""
	}
	apart := func(when string) {
		t.Helper()
		if got := wrong(); got != "" {
			t.Errorf("%s: %s", when, got)
		}
	}
	bed.Eventually(t, waitLong, "the groups are as they should be", func(context.Context) (bool, string) {
		got := wrong()
		return got == "", got
	})
	b.Stop("sandboxhost")
	apart("while sandboxhost is away")
	b.Continue("sandboxhost")
	b.KillRunner(supervisor, true)
	apart("while everything is away")
	b.Start()
	b.WaitReady()
	apart("after the death of everything")
	tool(t, "ip", "netns", "exec", b.NS, "nft", "flush", "ruleset")
	bed.Eventually(t, waitLong, "the groups are as they should be after a flush", func(context.Context) (bool, string) {
		got := wrong()
		return got == "", got
	})
	if _, err := services(b).RemoveService(t.Context(), &sandboxhostv1.RemoveServiceRequest{Uid: request.GetUid(), Manager: "local"}); err != nil {
		t.Error(err)
	}
	for _, uid := range []string{db, replica, web, watch, plain} {
		remove(t, b, uid)
	}
	settled(t, b)
}
