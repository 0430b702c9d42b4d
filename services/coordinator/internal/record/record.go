// Package record owns the few questions and moves that are the same for records
// of all kinds: which kind a record is, where it belongs, how its parts are
// replaced.
//
// It is pure: it must never read a store, know a caller or look at a clock. In
// the trail every package of the coordinator speaks of records with its words,
// so that a new kind is added here and in the table of rights.
package record

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Resource is one record of the cluster.
type Resource = resourcev1.Resource

// Kind names what a record describes.
type Kind = resourcev1.Kind

// The kinds, spelled short.
const (
	Node      = resourcev1.Kind_KIND_NODE
	Sandbox   = resourcev1.Kind_KIND_SANDBOX
	Disk      = resourcev1.Kind_KIND_DISK
	DiskLease = resourcev1.Kind_KIND_DISK_LEASE
	Service   = resourcev1.Kind_KIND_SERVICE
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{Node, Sandbox, Disk, DiskLease, Service} }

// Word is the kind as people and keys write it, such as "disk-lease".
func Word(k Kind) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(k.String(), "KIND_")), "_", "-")
}

// KindOfWord is the kind that Word writes so, and false for any other text.
func KindOfWord(word string) (Kind, bool) {
	for _, k := range Kinds() {
		if Word(k) == word {
			return k, true
		}
	}
	return 0, false
}

// Key is how people find a record: unique at any one time.
type Key struct {
	Kind Kind
	Name string
}

// String is "sandbox web-1".
func (k Key) String() string { return Word(k.Kind) + " " + k.Name }

// KeyOf returns the key of a record.
func KeyOf(r *Resource) Key { return Key{r.GetMeta().GetKind(), r.GetMeta().GetName()} }

// Body is the kind that the content of a record has, 0 when it has none.
func Body(r *Resource) Kind {
	switch r.GetKind().(type) {
	case *resourcev1.Resource_Node:
		return Node
	case *resourcev1.Resource_Sandbox:
		return Sandbox
	case *resourcev1.Resource_Disk:
		return Disk
	case *resourcev1.Resource_DiskLease:
		return DiskLease
	case *resourcev1.Resource_Service:
		return Service
	}
	return 0
}

// Home is the name of the node to which a record belongs: whose certificate may
// read it, and whose word counts about it. Empty means none yet; a service has none ever.
func Home(r *Resource) string {
	switch Body(r) {
	case Node:
		return r.GetMeta().GetName()
	case Sandbox:
		return r.GetSandbox().GetPlacement().GetNode()
	case Disk:
		if n := r.GetDisk().GetPlacement().GetNode(); n != "" {
			return n
		}
		return r.GetDisk().GetSpec().GetNode()
	case DiskLease:
		return r.GetDiskLease().GetSpec().GetNode()
	}
	return ""
}

// Seq is the number of the status that a record carries, 0 without one.
func Seq(r *Resource) uint64 {
	switch Body(r) {
	case Node:
		return r.GetNode().GetStatus().GetSeq()
	case Sandbox:
		return r.GetSandbox().GetStatus().GetSeq()
	case Disk:
		return r.GetDisk().GetStatus().GetSeq()
	case DiskLease:
		return r.GetDiskLease().GetStatus().GetSeq()
	}
	return 0
}

// Status is the status of a record as a message, nil without one.
func Status(r *Resource) proto.Message {
	switch Body(r) {
	case Node:
		return orNil(r.GetNode().GetStatus())
	case Sandbox:
		return orNil(r.GetSandbox().GetStatus())
	case Disk:
		return orNil(r.GetDisk().GetStatus())
	case DiskLease:
		return orNil(r.GetDiskLease().GetStatus())
	}
	return nil
}

// Spec is the spec of a record as a message, nil without one.
func Spec(r *Resource) proto.Message {
	switch Body(r) {
	case Node:
		return orNil(r.GetNode().GetSpec())
	case Sandbox:
		return orNil(r.GetSandbox().GetSpec())
	case Disk:
		return orNil(r.GetDisk().GetSpec())
	case DiskLease:
		return orNil(r.GetDiskLease().GetSpec())
	case Service:
		return orNil(r.GetService().GetSpec())
	}
	return nil
}

// Placed reports whether the coordinator has written a placement. A lease has
// none.
func Placed(r *Resource) bool {
	return r.GetNode().GetPlacement() != nil || r.GetSandbox().GetPlacement() != nil || r.GetDisk().GetPlacement() != nil ||
		r.GetService().GetPlacement() != nil
}

// TornDown is when the node had removed everything of a record, nil before.
func TornDown(r *Resource) *timestamppb.Timestamp {
	switch Body(r) {
	case Sandbox:
		return r.GetSandbox().GetStatus().GetTornDownAt()
	case Disk:
		return r.GetDisk().GetStatus().GetTornDownAt()
	}
	return nil
}

// SameSpec reports whether two records of one kind ask for the same. A spec that
// is not there asks for nothing, and so does an empty one.
func SameSpec(a, b *Resource) bool {
	sa, sb := Spec(a), Spec(b)
	if sa == nil || sb == nil {
		return empty(sa) && empty(sb)
	}
	return proto.Equal(sa, sb)
}

// SameLabels reports whether two records carry the same labels.
func SameLabels(a, b *Resource) bool {
	la, lb := a.GetMeta().GetLabels(), b.GetMeta().GetLabels()
	if len(la) != len(lb) {
		return false
	}
	for k, v := range la {
		if w, ok := lb[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// TakeSpec replaces spec and labels of into by those of from, as a whole: a
// field that from leaves out is gone afterwards. Both must be of one kind.
func TakeSpec(into, from *Resource) {
	into.Meta.Labels = from.GetMeta().GetLabels()
	switch Body(into) {
	case Node:
		into.GetNode().Spec = from.GetNode().GetSpec()
	case Sandbox:
		into.GetSandbox().Spec = from.GetSandbox().GetSpec()
	case Disk:
		into.GetDisk().Spec = from.GetDisk().GetSpec()
	case DiskLease:
		into.GetDiskLease().Spec = from.GetDiskLease().GetSpec()
	case Service:
		into.GetService().Spec = from.GetService().GetSpec()
	}
}

// TakeStatus replaces the status of into by that of from. Both must be of one
// kind.
func TakeStatus(into, from *Resource) {
	switch Body(into) {
	case Node:
		into.GetNode().Status = from.GetNode().GetStatus()
	case Sandbox:
		into.GetSandbox().Status = from.GetSandbox().GetStatus()
	case Disk:
		into.GetDisk().Status = from.GetDisk().GetStatus()
	case DiskLease:
		into.GetDiskLease().Status = from.GetDiskLease().GetStatus()
	}
}

// Clone returns a copy that may be changed: records in memory are shared.
func Clone(r *Resource) *Resource { return proto.CloneOf(r) }

// Deleting reports whether the deletion of a record was asked for.
func Deleting(r *Resource) bool { return r.GetMeta().GetDeletingAt() != nil }

// Label is how errors and logs name one life of a record.
func Label(r *Resource) string {
	return fmt.Sprintf("%s (%s)", KeyOf(r), r.GetMeta().GetUid())
}

func empty(m proto.Message) bool { return m == nil || proto.Size(m) == 0 }

// orNil keeps a nil pointer from becoming a message that is not nil.
func orNil[T any, P interface {
	*T
	proto.Message
}](p P) proto.Message {
	if p == nil {
		return nil
	}
	return p
}
