// Package rights owns who may do what with records: for every kind and verb,
// whether operators may, and in which relation to a record a node must stand.
//
// The method's own access rule has already admitted the role; this table is
// about the record. A pair that is not in the table is refused to everybody, and
// a test proves that every pair is in it. It is pure and must never look a
// record up. In the trail it is the first thing that a request on a record meets.
package rights

import (
	"net/url"
	"strings"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator/internal/record"
)

// Verb is what a caller does with a record.
type Verb int

// The verbs of the resource API.
const (
	Read Verb = iota + 1 // get, list and watch
	Create
	Update
	Status
	Delete
)

// Verbs lists all verbs.
func Verbs() []Verb { return []Verb{Read, Create, Update, Status, Delete} }

// String is the verb in words.
func (v Verb) String() string {
	return [...]string{"none", "read", "create", "update", "report the status of", "delete"}[v]
}

// relation is what a node must be to a record.
type relation int

const (
	nobody relation = iota
	own             // the record's home is that node
	every           // any node: records that all nodes work from
)

// rule is one line of the table.
type rule struct {
	operator bool
	node     relation
}

type pair struct {
	kind record.Kind
	verb Verb
}

var table = map[pair]rule{
	{record.Node, Read}:   {operator: true, node: own},
	{record.Node, Create}: {operator: true}, // admits a node that was removed
	{record.Node, Update}: {operator: true},
	{record.Node, Status}: {node: own},
	{record.Node, Delete}: {operator: true},

	{record.Sandbox, Read}:   {operator: true, node: own},
	{record.Sandbox, Create}: {operator: true},
	{record.Sandbox, Update}: {operator: true},
	{record.Sandbox, Status}: {node: own},
	{record.Sandbox, Delete}: {operator: true},

	{record.Disk, Read}:   {operator: true, node: own},
	{record.Disk, Create}: {operator: true},
	{record.Disk, Update}: {operator: true},
	{record.Disk, Status}: {node: own},
	{record.Disk, Delete}: {operator: true},

	{record.DiskLease, Read}:   {operator: true, node: own},
	{record.DiskLease, Create}: {}, // the coordinator alone gives and takes a right
	{record.DiskLease, Update}: {},
	{record.DiskLease, Status}: {node: own},
	{record.DiskLease, Delete}: {},

	{record.Service, Read}:   {operator: true, node: every},
	{record.Service, Create}: {operator: true},
	{record.Service, Update}: {operator: true},
	{record.Service, Status}: {}, // it has none
	{record.Service, Delete}: {operator: true},
}

// Caller is who asks, as far as records are concerned.
type Caller struct {
	operator bool
	node     string
	name     string
}

// CallerOf reads the caller of a call. A node's name is the last part of its
// identity, which must be of the trust domain.
func CallerOf(who rpc.Identity, trustDomain string) (Caller, error) {
	switch who.Role {
	case optionsv1.Role_ROLE_OPERATOR:
		return Caller{operator: true, name: who.Name}, nil
	case optionsv1.Role_ROLE_NODE:
		uri, err := url.Parse(who.Name)
		if err != nil || uri.Host != trustDomain {
			return Caller{}, fault.New(fault.Denied, "read caller %q: not of the trust domain %s", who.Name, trustDomain)
		}
		return Caller{node: strings.TrimPrefix(uri.Path, "/node/"), name: who.Name}, nil
	}
	return Caller{}, fault.New(fault.Denied, "read caller %q: neither operator nor node", who.Name)
}

// NewOperator returns an operator, for tests and for the coordinator itself.
func NewOperator(name string) Caller { return Caller{operator: true, name: name} }

// NewNode returns the node of that name.
func NewNode(node string) Caller { return Caller{node: node, name: node} }

// Node is the name of the calling node, empty for an operator.
func (c Caller) Node() string { return c.node }

// May returns Denied if the caller may not do verb with any record of a kind.
func (c Caller) May(verb Verb, kind record.Kind) error {
	r := table[pair{kind, verb}]
	if c.operator && r.operator || c.node != "" && r.node != nobody {
		return nil
	}
	return fault.New(fault.Denied, "%s %s: %s may not", verb, record.Word(kind), c.name)
}

// Sees reports whether the caller may read a record.
func (c Caller) Sees(r *record.Resource) bool { return c.Check(Read, r) == nil }

// Check returns Denied if the caller may not do verb with this record.
func (c Caller) Check(verb Verb, r *record.Resource) error {
	if err := c.May(verb, record.Body(r)); err != nil {
		return err
	}
	if c.node != "" && table[pair{record.Body(r), verb}].node == own && record.Home(r) != c.node {
		return fault.New(fault.Denied, "%s %s: it does not belong to node %s", verb, record.KeyOf(r), c.node)
	}
	return nil
}
