package rights

import (
	"errors"
	"testing"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator/internal/record"
)

// A kind that is added to the contract without lines in the table fails here.
func TestTable_IsComplete(t *testing.T) {
	for number, name := range resourcev1.Kind_name {
		kind := record.Kind(number)
		if kind == resourcev1.Kind_KIND_UNSPECIFIED {
			continue
		}
		for _, verb := range Verbs() {
			if _, ok := table[pair{kind, verb}]; !ok {
				t.Errorf("%s %s: no line in the table", verb, name)
			}
		}
		if word, ok := record.KindOfWord(record.Word(kind)); !ok || word != kind {
			t.Errorf("%s: package record does not know it", name)
		}
	}
	if want := len(Verbs()) * (len(resourcev1.Kind_name) - 1); len(table) != want {
		t.Errorf("got %d lines, want %d", len(table), want)
	}
}

func sandbox(node string) *record.Resource {
	return &record.Resource{Meta: &resourcev1.Metadata{Kind: record.Sandbox, Name: "s"}, Kind: &resourcev1.Resource_Sandbox{
		Sandbox: &resourcev1.Sandbox{Placement: &resourcev1.SandboxPlacement{Node: node}},
	}}
}

func disk(spec, placement string) *record.Resource {
	return &record.Resource{Meta: &resourcev1.Metadata{Kind: record.Disk, Name: "d"}, Kind: &resourcev1.Resource_Disk{
		Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{Node: spec}, Placement: &resourcev1.DiskPlacement{Node: placement}},
	}}
}

func node(name string) *record.Resource {
	return &record.Resource{Meta: &resourcev1.Metadata{Kind: record.Node, Name: name}, Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{}}}
}

func lease(node string) *record.Resource {
	return &record.Resource{Meta: &resourcev1.Metadata{Kind: record.DiskLease, Name: "l"}, Kind: &resourcev1.Resource_DiskLease{
		DiskLease: &resourcev1.DiskLease{Spec: &resourcev1.DiskLeaseSpec{Node: node}},
	}}
}

func TestNode_SeesOnlyItsOwn(t *testing.T) {
	n1 := NewNode("n1")
	for _, c := range []struct {
		name string
		r    *record.Resource
		want bool
	}{
		{"its own node", node("n1"), true},
		{"another node", node("n2"), false},
		{"a sandbox placed on it", sandbox("n1"), true},
		{"a sandbox placed elsewhere", sandbox("n2"), false},
		{"a sandbox not placed", sandbox(""), false},
		{"a disk on it", disk("", "n1"), true},
		{"a disk asked for on it", disk("n1", ""), true},
		{"a disk elsewhere", disk("n2", ""), false},
		{"a disk nowhere", disk("", ""), false},
		{"a lease on it", lease("n1"), true},
		{"a lease elsewhere", lease("n2"), false},
		{"a service, which is every node's", &record.Resource{Kind: &resourcev1.Resource_Service{Service: &resourcev1.Service{}}}, true},
		{"a record without content", &record.Resource{}, false},
	} {
		if got := n1.Sees(c.r); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}

func TestNode_MayOnlyReadAndReport(t *testing.T) {
	for _, kind := range record.Kinds() {
		for _, verb := range Verbs() {
			want := verb == Read || verb == Status && kind != record.Service
			if got := NewNode("n1").May(verb, kind) == nil; got != want {
				t.Errorf("node, %s %s: got %t, want %t", verb, record.Word(kind), got, want)
			}
		}
		if NewOperator("admin").May(Status, kind) == nil {
			t.Errorf("operator may report the status of %s", record.Word(kind))
		}
	}
	for _, verb := range []Verb{Create, Update, Delete} {
		if NewOperator("admin").May(verb, record.DiskLease) == nil {
			t.Errorf("operator may %s a disk lease", verb)
		}
	}
}

func TestCallerOf_RefusesOtherDomainsAndRoles(t *testing.T) {
	for _, who := range []rpc.Identity{
		{Role: optionsv1.Role_ROLE_NODE, Name: "spiffe://elsewhere/node/n1"},
		{Role: optionsv1.Role_ROLE_COORDINATOR, Name: "spiffe://staddle.local/coordinator/c1"},
		{},
	} {
		if _, err := CallerOf(who, "staddle.local"); !errors.Is(err, fault.Denied) {
			t.Errorf("%v: got %v, want Denied", who, err)
		}
	}
	c, err := CallerOf(rpc.Identity{Role: optionsv1.Role_ROLE_NODE, Name: "spiffe://staddle.local/node/n1"}, "staddle.local")
	if err != nil || c.Node() != "n1" {
		t.Errorf("got %q and %v, want n1", c.Node(), err)
	}
}
