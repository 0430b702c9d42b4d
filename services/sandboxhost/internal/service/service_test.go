package service

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/balance"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

var cfg = Config{
	Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("198.51.100.0/29")},
	Subnet:   netip.MustParsePrefix("10.77.0.0/16"),
}

func wishFor(uid, name string, generation uint64) *sandboxhostv1.ServiceWish {
	return &sandboxhostv1.ServiceWish{
		Uid: uid, Name: name, Manager: "local", Generation: generation, Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []*resourcev1.ServicePort{{Port: 80}},
		},
	}
}

func TestJudge_AcceptsWhatBreaksNoRule(t *testing.T) {
	other := wishFor("B", "other", 4)
	other.Manager, other.Address = "cluster", "192.0.2.1"
	own := wishFor("A", "web", 4)
	own.Address, own.Position = "192.0.2.2", &resourcev1.Position{Revision: 7}
	full := map[string]*sandboxhostv1.ServiceWish{}
	for i := range limit {
		uid := fmt.Sprint("F", i)
		full[uid] = wishFor(uid, uid, 1)
	}
	with := func(change func(*sandboxhostv1.ServiceWish), of *sandboxhostv1.ServiceWish) *sandboxhostv1.ServiceWish {
		w := proto.CloneOf(of)
		change(w)
		return w
	}
	both := map[string]*sandboxhostv1.ServiceWish{"A": own, "B": other}
	for name, tt := range map[string]struct {
		all    map[string]*sandboxhostv1.ServiceWish
		wish   *sandboxhostv1.ServiceWish
		kind   fault.Kind
		reason string
		at     string // when it changes something
	}{
		"the first":                   {wish: wishFor("A", "web", 1), at: "192.0.2.1"},
		"the next free":               {all: map[string]*sandboxhostv1.ServiceWish{"B": other}, wish: wishFor("A", "web", 1), at: "192.0.2.2"},
		"of the next prefix":          {all: both, wish: wishFor("C", "third", 1), at: "198.51.100.1"},
		"the same again":              {all: both, wish: wishFor("A", "web", 4)},
		"the same at another place":   {all: both, wish: with(func(w *sandboxhostv1.ServiceWish) { w.Position = &resourcev1.Position{Revision: 8} }, own), at: "192.0.2.2"},
		"the same at no place":        {all: both, wish: with(func(w *sandboxhostv1.ServiceWish) { w.Position = nil }, own)},
		"newer, keeps its address":    {all: both, wish: wishFor("A", "web", 5), at: "192.0.2.2"},
		"newer, with another address": {all: both, wish: with(func(w *sandboxhostv1.ServiceWish) { w.Address = "198.51.100.6" }, wishFor("A", "web", 5)), at: "198.51.100.6"},
		"late":                        {all: both, wish: wishFor("A", "web", 3), kind: fault.Conflict, reason: "STALE_GENERATION"},
		"another spec": {all: both, kind: fault.Conflict, reason: "SPEC_CHANGED",
			wish: with(func(w *sandboxhostv1.ServiceWish) { w.Spec.Affinity = durationpb.New(time.Second) }, own)},
		"another name":      {all: both, wish: wishFor("A", "webs", 5), kind: fault.Conflict, reason: "SPEC_CHANGED"},
		"a name of another": {all: both, wish: wishFor("C", "other", 1), kind: fault.Conflict, reason: "NAME_TAKEN"},
		"another manager":   {all: both, wish: wishFor("B", "other", 5), kind: fault.Denied, reason: "MANAGER_MISMATCH"},
		"an address of another": {all: both, kind: fault.Conflict, reason: "ADDRESS_TAKEN",
			wish: with(func(w *sandboxhostv1.ServiceWish) { w.Address = "192.0.2.1" }, wishFor("C", "c", 1))},
		"the first of a prefix": {kind: fault.Conflict, reason: "ADDRESS_OUTSIDE",
			wish: with(func(w *sandboxhostv1.ServiceWish) { w.Address = "192.0.2.0" }, wishFor("C", "c", 1))},
		"the last of a prefix": {kind: fault.Conflict, reason: "ADDRESS_OUTSIDE",
			wish: with(func(w *sandboxhostv1.ServiceWish) { w.Address = "192.0.2.3" }, wishFor("C", "c", 1))},
		"too many": {all: full, wish: wishFor("A", "web", 1), kind: fault.Exhausted, reason: "TOO_MANY_SERVICES"},
	} {
		changed, err := judge(cfg, tt.all, tt.wish)
		switch {
		case tt.reason != "":
			if !errors.Is(err, tt.kind) || fault.Reason(err) != tt.reason {
				t.Errorf("%s: got %v with reason %q, want %v with %s", name, err, fault.Reason(err), tt.kind, tt.reason)
			}
		case err != nil || changed != (tt.at != "") || changed && tt.wish.GetAddress() != tt.at:
			t.Errorf("%s: got changed %t at %s, %v, want it at %q", name, changed, tt.wish.GetAddress(), err, tt.at)
		}
	}
	if _, err := judge(Config{}, nil, wishFor("A", "web", 1)); !errors.Is(err, fault.Denied) || !strings.Contains(err.Error(), "network.service_prefixes") {
		t.Errorf("without prefixes: got %v, want the key to set", err)
	}
}

func TestJudge_NoAddressIsLeft(t *testing.T) {
	all := map[string]*sandboxhostv1.ServiceWish{}
	small := Config{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}}
	for _, uid := range []string{"A", "B"} {
		w := wishFor(uid, strings.ToLower(uid), 1)
		if _, err := judge(small, all, w); err != nil {
			t.Fatal(err)
		}
		all[uid] = w
	}
	if _, err := judge(small, all, wishFor("C", "c", 1)); !errors.Is(err, fault.Exhausted) || fault.Reason(err) != "NO_ADDRESS" {
		t.Errorf("got %v, want that none is free", err)
	}
}

// Only what runs, is ready, is not being removed and is on the node's network is behind a
// service, at the port that it says.
func TestPlan_LeadsToReadyOnesOnly(t *testing.T) {
	k := New(cfg, Deps{})
	state := func(change func(*sandboxhostv1.SandboxState)) member {
		s := &sandboxhostv1.SandboxState{Name: "s", Labels: map[string]string{"app": "web", "tier": "1"}, Status: &resourcev1.SandboxStatus{
			Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, Addresses: []string{"10.77.0.2"},
			Conditions: []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}},
		}}
		change(s)
		return k.memberOf(s)
	}
	wish := wishFor("A", "web", 1)
	wish.Address = "192.0.2.1"
	wish.Spec.Affinity = durationpb.New(time.Minute)
	wish.Spec.Ports = []*resourcev1.ServicePort{{Port: 80, TargetPort: 8080, NodePort: 30080, NodeAddress: "127.0.0.1"}, {Port: 53, Protocol: "udp"}}
	for name, tt := range map[string]struct {
		change func(*sandboxhostv1.SandboxState)
		want   bool
	}{
		"ready":    {func(*sandboxhostv1.SandboxState) {}, true},
		"stopping": {func(s *sandboxhostv1.SandboxState) { s.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING }, false},
		"not ready": {func(s *sandboxhostv1.SandboxState) {
			s.Status.Conditions[0].State = resourcev1.ConditionState_CONDITION_STATE_FALSE
		}, false},
		"readiness unknown":     {func(s *sandboxhostv1.SandboxState) { s.Status.Conditions = nil }, false},
		"being removed":         {func(s *sandboxhostv1.SandboxState) { s.Removing = true }, false},
		"of the host's network": {func(s *sandboxhostv1.SandboxState) { s.Status.Addresses = []string{"203.0.113.1"} }, false},
		"other labels":          {func(s *sandboxhostv1.SandboxState) { s.Labels = map[string]string{"app": "db"} }, false},
		"no labels":             {func(s *sandboxhostv1.SandboxState) { s.Labels = nil }, false},
	} {
		fronts, behind := plan(map[string]*sandboxhostv1.ServiceWish{"A": wish}, map[id.Sandbox]member{"S": state(tt.change)})
		web := fronts[balance.Front{Address: netip.MustParseAddr("192.0.2.1"), Protocol: "tcp", Port: 80}]
		dns := fronts[balance.Front{Address: netip.MustParseAddr("192.0.2.1"), Protocol: "udp", Port: 53}]
		node := fronts[balance.Front{Node: true, Address: netip.MustParseAddr("127.0.0.1"), Protocol: "tcp", Port: 30080}]
		if len(fronts) != 3 || !slices.Equal(node.Backends, web.Backends) || web.Affinity != time.Minute || behind["S"] != tt.want {
			t.Errorf("%s: got fronts %v with %v behind", name, fronts, behind)
		}
		if got := fmt.Sprint(web.Backends, dns.Backends); (got == "[10.77.0.2:8080] [10.77.0.2:53]") != tt.want {
			t.Errorf("%s: led to %s, want it led: %t", name, got, tt.want)
		}
	}
}

// A headless service needs no address, leads nowhere in the kernel, and names who is ready.
func TestKeeper_NamesWhoIsBehindAHeadlessService(t *testing.T) {
	wish, other := wishFor("A", "pool", 1), wishFor("B", "web", 1)
	wish.Spec.Headless, other.Address = true, "192.0.2.1"
	all := map[string]*sandboxhostv1.ServiceWish{"B": other}
	if changed, err := judge(cfg, all, wish); err != nil || !changed || wish.GetAddress() != "" {
		t.Fatalf("got changed %t, %v and address %q, want none", changed, err, wish.GetAddress())
	}
	all["A"] = wish
	k := New(cfg, Deps{})
	k.wishes, k.members = all, map[id.Sandbox]member{
		"S": {name: "one", labels: map[string]string{"app": "web"}, addr: netip.MustParseAddr("10.77.0.2")},
		"T": {name: "starts", labels: map[string]string{"app": "web"}},
		"U": {name: "db", labels: map[string]string{"app": "db"}, addr: netip.MustParseAddr("10.77.0.3")},
	}
	if s, ok := k.Named("pool"); !ok || s.Address.IsValid() || fmt.Sprint(s.Ready) != "[{one 10.77.0.2}]" {
		t.Errorf("got %v, %t, want the one that is ready", s, ok)
	}
	if s, ok := k.Named("web"); !ok || s.Address.String() != "192.0.2.1" || s.Ready != nil {
		t.Errorf("got %v, %t, want its address alone", s, ok)
	}
	if fronts, _ := plan(map[string]*sandboxhostv1.ServiceWish{"A": wish}, k.members); len(fronts) != 0 {
		t.Errorf("led to %v, want nowhere", fronts)
	}
}
