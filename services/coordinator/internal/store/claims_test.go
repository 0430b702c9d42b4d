package store_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

func service(name, address string, nodePorts ...uint32) *record.Resource {
	spec := &resourcev1.ServiceSpec{}
	for _, n := range nodePorts {
		spec.Ports = append(spec.Ports, &resourcev1.ServicePort{Port: n, NodePort: n})
	}
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Service, Name: name, Uid: id.New(), Generation: 1},
		Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{Spec: spec, Placement: &resourcev1.ServicePlacement{Address: address}}},
	}
}

func claimed(t *testing.T, s *store.Store) []string {
	t.Helper()
	all, err := s.Claimed(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for what := range all {
		list = append(list, what)
	}
	slices.Sort(list)
	return list
}

// Of many that ask for one address at once, one gets it, with and without an id of the
// request; the others are told who.
func TestStore_OneOfManyGetsAnAddress(t *testing.T) {
	s, _ := start(t)
	const many = 8
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		r := service(fmt.Sprint("s", i), "192.0.2.1", uint32(30000+i))
		request := ""
		if i%2 == 0 {
			request = r.GetMeta().GetUid()
		}
		wg.Go(func() { _, errs[i] = s.Create(t.Context(), r, store.Change{}, request, r) })
	}
	wg.Wait()
	made := 0
	for i, err := range errs {
		if err == nil {
			made++
			continue
		}
		taken, ok := errors.AsType[*store.ClaimError](err)
		if !ok || fault.Reason(err) != store.ReasonClaimed || len(taken.Owners) != 1 {
			t.Errorf("%d: got %v, want who has the address", i, err)
		}
	}
	if got := claimed(t, s); made != 1 || len(got) != 2 {
		t.Errorf("got %d made with %v, want one, with an address and a port", made, got)
	}
}

// Claims come and go with the record that has them.
func TestStore_ClaimsFollowTheRecord(t *testing.T) {
	s, _ := start(t)
	web, db := create(t, s, service("web", "192.0.2.1", 80)), create(t, s, service("db", "192.0.2.2", 81))
	if _, err := s.Create(t.Context(), service("web", "192.0.2.1", 80), store.Change{}, "", web); !errors.Is(err, fault.Exists) {
		t.Errorf("the same name: got %v, want Exists", err)
	}
	next := record.Clone(web)
	next.GetService().GetSpec().Ports[0].NodePort = 81
	if _, err := s.Update(t.Context(), web, next); fault.Reason(err) != store.ReasonClaimed {
		t.Errorf("a port of another: got %v, want CLAIMED", err)
	}
	next.GetService().GetSpec().Ports[0].NodePort = 82
	next, err := s.Update(t.Context(), web, next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), web, web); fault.Reason(err) != store.ReasonRevision {
		t.Errorf("from an older revision: got %v, want REVISION", err)
	}
	if got := fmt.Sprint(claimed(t, s)); got != "[address/192.0.2.1 address/192.0.2.2 node-port/tcp/81 node-port/tcp/82]" {
		t.Errorf("after another port: got %s", got)
	}
	for _, r := range []*record.Resource{next, db} {
		if _, err := s.Commit(t.Context(), store.Change{Remove: []*record.Resource{r}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := claimed(t, s); len(got) != 0 {
		t.Errorf("after all are gone: got %v", got)
	}
	create(t, s, service("other", "192.0.2.1", 80))
}
