package inventory

import (
	"fmt"
	"slices"
	"testing"

	"staddle.internal/kit/id"
)

// parts of a sandbox as the test has them: a namespace, an interface that does not
// tell its sandbox, and per container a record.
func parts(s Stock) []Object {
	all := []Object{{Kind: Namespace, Name: "/pins/" + s.UID.Lower(), UID: s.UID}}
	if !s.HostNetwork {
		all = append(all, Object{Kind: Interface, Name: "v" + s.UID.Short()})
	}
	for _, c := range s.Running {
		all = append(all, Object{Kind: Container, Name: c, UID: s.UID, Container: c})
	}
	return all
}

func words(ds []Difference) []string {
	list := []string{}
	for _, d := range ds {
		how := "left"
		if d.Missing {
			how = "missing"
		}
		list = append(list, fmt.Sprintf("%s %s %s", how, d.Kind.String()[len("OBJECT_KIND_"):], d.Name))
	}
	return list
}

func TestCompare(t *testing.T) {
	uid := id.Sandbox("01J00000000000000000000001")
	one, old := "one-2", "one-1"
	running := Stock{UID: uid, Quiet: true, Stands: true, Runs: true, Written: true, Containers: []string{one}, Running: []string{one}}
	stopped := Stock{UID: uid, Quiet: true, Written: true}
	gone := Stock{UID: uid, Quiet: true}
	busy := Stock{UID: uid, Running: []string{one}}
	waiting := Stock{UID: uid, Quiet: true, Stands: true, Written: true}
	pin := Object{Kind: Namespace, Name: "/pins/" + uid.Lower(), UID: uid}
	link := Object{Kind: Interface, Name: "v" + uid.Short()}
	record := Object{Kind: Container, Name: one, UID: uid, Container: one}
	older := Object{Kind: Snapshot, Name: old, UID: uid, Container: old}
	output := Object{Kind: Output, Name: "/logs/" + uid.Lower(), UID: uid}
	for _, tt := range []struct {
		name  string
		stock *Stock
		found []Object
		want  []string
	}{
		{"nothing", nil, nil, nil},
		{"all there", &running, []Object{pin, link, record, output}, nil},
		{"all missing", &running, nil, []string{"missing INTERFACE v" + uid.Short(), "missing CONTAINER one-2", "missing NAMESPACE /pins/" + uid.Lower()}},
		{"one missing", &running, []Object{pin, record}, []string{"missing INTERFACE v" + uid.Short()}},
		{"left of an earlier attempt", &running, []Object{pin, link, record, older}, []string{"left SNAPSHOT one-1"}},
		{"stopped keeps its output", &stopped, []Object{output}, nil},
		{"stopped has no namespace", &stopped, []Object{pin, output}, []string{"left NAMESPACE /pins/" + uid.Lower()}},
		{"stopped has no interface", &stopped, []Object{link}, []string{"left INTERFACE v" + uid.Short()}},
		{"stopped has no container", &stopped, []Object{record}, []string{"left CONTAINER one-2"}},
		{"torn down has no output", &gone, []Object{output}, []string{"left OUTPUT /logs/" + uid.Lower()}},
		{"busy may have anything", &busy, []Object{pin, link, older, output}, nil},
		{"busy may have nothing", &busy, nil, nil},
		{"waiting may have namespaces", &waiting, []Object{pin, link, output}, nil},
		{"waiting may have none", &waiting, nil, nil},
		{"waiting has no container", &waiting, []Object{pin, record}, []string{"left CONTAINER one-2"}},
		{"unknown sandbox", nil, []Object{record, pin}, []string{"left CONTAINER one-2", "left NAMESPACE /pins/" + uid.Lower()}},
		{"of nobody", &running, []Object{pin, link, record, {Kind: Lease, Name: "l"}}, []string{"left LEASE l"}},
		{"network", nil, []Object{{Kind: Network, Name: "no rules"}}, []string{"missing NETWORK no rules"}},
		{"listed twice", nil, []Object{record, record}, []string{"left CONTAINER one-2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stocks := map[id.Sandbox]Stock{}
			if tt.stock != nil {
				stocks[uid] = *tt.stock
			}
			if got := words(Compare(stocks, parts, tt.found)); !slices.Equal(got, tt.want) && len(got)+len(tt.want) > 0 {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCompare_HostNetworkHasNoInterface(t *testing.T) {
	uid := id.NewSandbox()
	s := Stock{UID: uid, Quiet: true, Stands: true, Runs: true, HostNetwork: true}
	found := []Object{{Kind: Namespace, Name: "/pins/" + uid.Lower(), UID: uid}, {Kind: Address, Name: "10.0.0.2", UID: uid}}
	want := []string{"left ADDRESS 10.0.0.2"}
	if got := words(Compare(map[id.Sandbox]Stock{uid: s}, parts, found)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStayed(t *testing.T) {
	a, b, c := Difference{Object: Object{Kind: Lease, Name: "a"}}, Difference{Object: Object{Kind: Lease, Name: "b"}}, Difference{Object: Object{Kind: Lease, Name: "c"}}
	missing := a
	missing.Missing = true
	if got := words(Stayed([]Difference{a, b}, []Difference{missing, b, c})); !slices.Equal(got, []string{"left LEASE b"}) {
		t.Errorf("stayed: got %q", got)
	}
}
