package coordinator_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

const kindService = resourcev1.Kind_KIND_SERVICE

func service(name, address string, nodePort uint32) *resourcev1.Resource {
	return &resourcev1.Resource{
		Meta: &resourcev1.Metadata{Kind: kindService, Name: name},
		Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{Spec: &resourcev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Address: address, Ports: []*resourcev1.ServicePort{{Port: 80, NodePort: nodePort}},
		}}},
	}
}

func ask(t *testing.T, c client, r *resourcev1.Resource, request string) (*resourcev1.Resource, error) {
	t.Helper()
	resp, err := c.CreateResource(t.Context(), &coordinatorv1.CreateResourceRequest{Resource: r, RequestId: request})
	return resp.GetResource(), err
}

// A service gets an address of the cluster once, keeps it, and gives it back; nodes see
// it, and may do nothing else with it.
func TestCoordinator_LifeOfAService(t *testing.T) {
	t.Parallel()
	r := prepare(t, "service_prefix: 192.0.2.0/30\n")
	r.start()
	admin, n1 := r.operator(), r.node1()
	web := admin.create(t, service("web", "192.0.2.2", 30080))
	if got := web.GetService().GetPlacement().GetAddress(); got != "192.0.2.2" {
		t.Errorf("got address %s, want the one that was asked for", got)
	}
	for name, tt := range map[string]struct {
		r      *resourcev1.Resource
		kind   fault.Kind
		reason string
		text   string
	}{
		"the address":        {service("db", "192.0.2.2", 0), fault.Conflict, "ADDRESS_TAKEN", "address 192.0.2.2 is taken by service web"},
		"the port":           {service("db", "", 30080), fault.Conflict, "NODE_PORT_TAKEN", "node port tcp/30080 is taken by service web"},
		"the name":           {service("web", "192.0.2.2", 30080), fault.Exists, "", "the name is taken"},
		"an address outside": {service("db", "192.0.2.8", 0), fault.Invalid, "", "192.0.2.0/30"},
		"no port at all":     {service("db", "", 70000), fault.Invalid, "", "node_port"},
	} {
		if _, err := ask(t, admin, tt.r, ""); fault.KindOf(err) != tt.kind || fault.Reason(err) != tt.reason || !strings.Contains(fmt.Sprint(err), tt.text) {
			t.Errorf("%s: got %v with reason %q, want %v, %s and %q", name, err, fault.Reason(err), tt.kind, tt.reason, tt.text)
		}
	}
	db, err := ask(t, admin, service("db", "", 0), "request")
	if err != nil || db.GetService().GetPlacement().GetAddress() != "192.0.2.1" {
		t.Fatalf("got %v, %v, want the other address", db, err)
	}
	if _, err := ask(t, admin, service("more", "", 0), ""); !errors.Is(err, fault.Exhausted) || fault.Reason(err) != "NO_ADDRESS" {
		t.Errorf("a third of two: got %v, want NO_ADDRESS", err)
	}
	if again, err := ask(t, admin, service("db", "", 0), "request"); err != nil || again.GetMeta().GetUid() != db.GetMeta().GetUid() {
		t.Errorf("the same request: got %v, %v, want the service that it made", again, err)
	}
	pool := service("pool", "", 0)
	pool.GetService().GetSpec().Headless = true
	if pool = admin.create(t, pool); pool.GetService().GetPlacement().GetAddress() != "" {
		t.Errorf("got %v, want a headless service without an address, also when none is free", pool)
	}
	pool.GetService().GetSpec().Headless = false
	if _, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: pool}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an address for a headless service: got %v, want Invalid", err)
	}
	if _, err := ask(t, admin, func() *resourcev1.Resource {
		r := service("both", "192.0.2.1", 0)
		r.GetService().GetSpec().Headless = true
		return r
	}(), ""); !errors.Is(err, fault.Invalid) {
		t.Errorf("a headless service with an address: got %v, want Invalid", err)
	}
	if got := n1.get(t, kindService, "web"); got.GetMeta().GetUid() != web.GetMeta().GetUid() {
		t.Errorf("a node got %v, want the service", got)
	}
	if _, err := n1.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kindService, Name: "web"}); !errors.Is(err, fault.Denied) {
		t.Errorf("a node deletes: got %v, want Denied", err)
	}
	web.GetService().GetSpec().Ports[0].NodePort = 30081
	changed, err := admin.UpdateResource(t.Context(), &coordinatorv1.UpdateResourceRequest{Resource: web})
	if err != nil || changed.GetResource().GetMeta().GetGeneration() != 2 {
		t.Fatalf("got %v, %v, want generation 2", changed, err)
	}
	remove(t, admin, kindService, "web")
	gone(t, admin, kindService, "web")
	if _, err := ask(t, admin, service("next", "", 30081), ""); err != nil {
		t.Errorf("what was given back: got %v, want it given", err)
	}
}

// Two coordinators over one etcd never give an address or a port twice.
func TestCoordinators_GiveAnAddressOnce(t *testing.T) {
	t.Parallel()
	url := freeURL(t)
	startEtcd(t, url)
	more := fmt.Sprintf("service_prefix: 192.0.2.0/29\netcd: {endpoints: [%q]}\n", url.String())
	first := prepare(t, more)
	first.start()
	second := prepare(t, more)
	second.start()
	admins := []client{first.operator(), second.operator()}
	const many = 12 // of six addresses
	var mu sync.Mutex
	addresses := map[string]int{}
	refused := 0
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			r, err := ask(t, admins[i%2], service(fmt.Sprint("s", i), "", 0), "")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				addresses[r.GetService().GetPlacement().GetAddress()]++
			case fault.Reason(err) == "NO_ADDRESS":
				refused++
			default:
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if len(addresses) != 6 || refused != 6 {
		t.Errorf("got %v and %d refused, want six with an address each and six without", addresses, refused)
	}
	for address, n := range addresses {
		if n != 1 {
			t.Errorf("%s was given %d times", address, n)
		}
	}
}

// Many that create services at once fill the cluster up, and none more gets in; one that is
// deleted makes room for one. The same with secrets, where there is time for the thousands of them.
func TestCoordinator_FillsUpExactly(t *testing.T) {
	t.Parallel()
	r := prepare(t, "service_prefix: 10.78.128.0/17\n")
	r.start()
	admin := r.operator()
	fillsUp(t, "service", 1000, "TOO_MANY_SERVICES", func(name string) error {
		s := service(name, "", 0)
		s.GetService().GetSpec().Headless = true
		_, err := ask(t, admin, s, name)
		return err
	}, func(name string) error {
		_, err := admin.DeleteResource(t.Context(), &coordinatorv1.DeleteResourceRequest{Kind: kindService, Name: name})
		return err
	})
	if os.Getenv("FULL_LENGTH") != "1" {
		return
	}
	secrets := coordinatorv1.NewSecretServiceClient(admin.conn)
	fillsUp(t, "secret", 4096, "", func(name string) error {
		_, err := secrets.PutSecret(t.Context(), &coordinatorv1.PutSecretRequest{
			Name: name, Entries: []*resourcev1.SecretEntry{{Key: "k", Value: []byte("v")}},
		})
		return err
	}, func(name string) error {
		_, err := secrets.DeleteSecret(t.Context(), &coordinatorv1.DeleteSecretRequest{Name: name})
		return err
	})
}

func fillsUp(t *testing.T, what string, most int, reason string, create, remove func(name string) error) {
	t.Helper()
	const few, more = 8, 48
	var wg sync.WaitGroup
	for i := range few {
		wg.Go(func() { // waited for below
			for n := i; n < most-few; n += few {
				if err := create(fmt.Sprintf("s%d", n)); err != nil {
					t.Errorf("%s %d: %v", what, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	var mu sync.Mutex // guards in
	in := 0
	for i := range more {
		wg.Go(func() { // waited for below
			err := create(fmt.Sprintf("more%d", i))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
			} else if !errors.Is(err, fault.Exhausted) || fault.Reason(err) != reason {
				t.Errorf("%s: got %v, want Exhausted", what, err)
			}
		})
	}
	wg.Wait()
	if in != few {
		t.Errorf("%s: %d got in, want the last %d", what, in, few)
	}
	if err := create("s0"); err != nil {
		t.Errorf("%s: a repeat while it is full: %v", what, err)
	}
	if err := remove("s0"); err != nil {
		t.Fatal(err)
	}
	if err := create("instead"); err != nil {
		t.Errorf("%s: after one was deleted: %v", what, err)
	}
	if err := create("too-many"); !errors.Is(err, fault.Exhausted) {
		t.Errorf("%s: full again: got %v", what, err)
	}
}
