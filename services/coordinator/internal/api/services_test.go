package api

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

func service(change func(*resourcev1.Service)) *resourcev1.Resource {
	s := &resourcev1.Service{Spec: &resourcev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []*resourcev1.ServicePort{{Port: 80, NodePort: 30080}},
	}}
	if change != nil {
		change(s)
	}
	return &resourcev1.Resource{Meta: &resourcev1.Metadata{Kind: record.Service, Name: "web"}, Kind: &resourcev1.Resource_Service{Service: s}}
}

func TestFreeAddress(t *testing.T) {
	p := netip.MustParsePrefix("192.0.2.252/30")
	for name, tt := range map[string]struct {
		taken []string
		from  uint32
		want  string
	}{
		"the first":                  {want: "192.0.2.253"},
		"where it was begun":         {from: 1, want: "192.0.2.254"},
		"around the end":             {from: 1, taken: []string{"192.0.2.254"}, want: "192.0.2.253"},
		"none":                       {taken: []string{"192.0.2.254", "192.0.2.253"}},
		"others do not stand for it": {taken: []string{"10.0.0.1"}, want: "192.0.2.253"},
	} {
		taken := map[string]bool{}
		for _, a := range tt.taken {
			taken[a] = true
		}
		got, ok := freeAddress(p, taken, func(n uint32) uint32 {
			if n != 2 {
				t.Errorf("%s: chosen of %d addresses, want 2", name, n)
			}
			return tt.from
		})
		if ok != (tt.want != "") || ok && (got.String() != tt.want || !assignable(p, got)) {
			t.Errorf("%s: got %s, %t, want %q", name, got, ok, tt.want)
		}
	}
}

// All that is wrong with a service is told at once.
func TestCheckNew_Service(t *testing.T) {
	prefix := netip.MustParsePrefix("10.78.128.0/17")
	at := func(address string) func(*resourcev1.Service) {
		return func(s *resourcev1.Service) { s.Spec.Address = address }
	}
	for name, tt := range map[string]struct {
		change func(*resourcev1.Service)
		prefix netip.Prefix
		kind   fault.Kind
		want   []string
	}{
		"good":              {prefix: prefix},
		"with an address":   {prefix: prefix, change: at("10.78.128.1")},
		"outside":           {prefix: prefix, change: at("10.78.0.1"), kind: fault.Invalid, want: []string{"10.78.0.1 is no address", "10.78.128.0/17"}},
		"the first address": {prefix: prefix, change: at("10.78.128.0"), kind: fault.Invalid, want: []string{"service.spec.address"}},
		"the last address":  {prefix: prefix, change: at("10.78.255.255"), kind: fault.Invalid, want: []string{"service.spec.address"}},
		"without a spec":    {prefix: prefix, change: func(s *resourcev1.Service) { s.Spec = nil }, kind: fault.Invalid, want: []string{"service.spec"}},
		"several": {prefix: prefix, kind: fault.Invalid, want: []string{"placement", "service.spec.address"}, change: func(s *resourcev1.Service) {
			s.Spec.Address, s.Placement = "10.79.0.1", &resourcev1.ServicePlacement{Address: "10.79.0.1"}
		}},
		"no services here": {kind: fault.Denied, want: []string{"service_prefix"}},
	} {
		err := checkNew(service(tt.change), tt.prefix)
		if fault.KindOf(err) != tt.kind || (err == nil) != (tt.kind == 0) {
			t.Errorf("%s: got %v, want kind %v", name, err, tt.kind)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want it to say %q", name, err, want)
			}
		}
	}
}

// The address of a service stays; to name it, or none, changes nothing about it.
func TestUpdated_AddressOfAServiceStays(t *testing.T) {
	old := service(func(s *resourcev1.Service) { s.Placement = &resourcev1.ServicePlacement{Address: "10.78.128.1"} })
	for address, good := range map[string]bool{"": true, "10.78.128.1": true, "10.78.128.2": false} {
		next, err := updated(old, service(func(s *resourcev1.Service) { s.Spec.Address, s.Spec.Ports[0].NodePort = address, 0 }))
		if (err == nil) != good || good && next.GetService().GetPlacement().GetAddress() != "10.78.128.1" {
			t.Errorf("%q: got %v, %v, want it taken: %t", address, next, err, good)
		}
	}
}

// Who is in the way decides what is done: an address of ours is chosen again, all else is
// refused with its reason.
func TestClaims_WhoIsInTheWay(t *testing.T) {
	const address, port = "address/10.78.128.1", "node-port/tcp/30080"
	placed := func(asked string) *resourcev1.Resource {
		return service(func(s *resourcev1.Service) {
			s.Spec.Address, s.Placement = asked, &resourcev1.ServicePlacement{Address: "10.78.128.1"}
		})
	}
	for name, tt := range map[string]struct {
		r      *resourcev1.Resource
		owners map[string]string
		again  bool
		reason string
	}{
		"a chosen address":              {placed(""), map[string]string{address: "db"}, true, ReasonAddressTaken},
		"an address that was asked for": {placed("10.78.128.1"), map[string]string{address: "db"}, false, ReasonAddressTaken},
		"a port":                        {placed(""), map[string]string{port: "db"}, false, ReasonNodePortTaken},
		"both":                          {placed("10.78.128.1"), map[string]string{port: "db", address: "mail"}, false, ReasonAddressTaken},
		"a port and a chosen address":   {placed(""), map[string]string{port: "db", address: "mail"}, true, ReasonAddressTaken},
	} {
		err := fault.WithReason(fault.New(fault.Conflict, "%w", &store.ClaimError{Record: tt.r, Owners: tt.owners}), store.ReasonClaimed)
		told := claimed("create", err)
		if lostChoice(tt.r, err) != tt.again || fault.Reason(told) != tt.reason || !errors.Is(told, fault.Conflict) {
			t.Errorf("%s: got again %t, %v, want again %t, %s", name, lostChoice(tt.r, err), told, tt.again, tt.reason)
		}
		for _, owner := range tt.owners {
			if !strings.Contains(told.Error(), "taken by service "+owner) {
				t.Errorf("%s: got %v, want it to name %s", name, told, owner)
			}
		}
	}
}
