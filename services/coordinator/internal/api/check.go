package api

import (
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
)

// The rules of single fields stand in the contract and were checked before; here
// is what they cannot say. All problems of a request are told at once.

// maxAsked bounds what a caller may ask for in one record. The store takes more: the
// coordinator and the node have to write their parts of the same record.
const maxAsked = 256 << 10

// problems collects what is wrong with a record.
type problems struct {
	key  record.Key
	list []string
}

func (p *problems) must(ok bool, field, text string) {
	if !ok {
		p.list = append(p.list, field+": "+text)
	}
}

func (p *problems) err(verb string) error {
	if len(p.list) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "%s %s: %s", verb, p.key, strings.Join(p.list, "; "))
}

// checkNew is for records to create. Services get their addresses of services.
func checkNew(r *record.Resource, services netip.Prefix) error {
	p := wellFormed(r)
	m := r.GetMeta()
	const ours = "the coordinator writes it: leave it out"
	p.must(m.GetUid() == "", "meta.uid", ours)
	p.must(m.GetRevision() == 0, "meta.revision", ours)
	p.must(m.GetOwner() == "", "meta.owner", ours)
	p.must(m.GetCreatedAt() == nil, "meta.created_at", ours)
	p.must(m.GetDeletingAt() == nil, "meta.deleting_at", ours)
	p.must(m.GetGeneration() == 0, "meta.generation", ours)
	p.must(!record.Placed(r), "placement", ours)
	p.must(record.Status(r) == nil, "status", "the node writes it: leave it out")
	p.spec(r)
	p.service(r.GetService().GetSpec(), services)
	if err := p.err("create"); err != nil || record.Body(r) != record.Service || services.IsValid() {
		return err
	}
	return fault.WithReason(fault.New(fault.Denied, "create %s: this cluster has no services; give it service_prefix in coordinator.yaml", p.key), ReasonNoServices)
}

// checkUpdate is for records to update.
func checkUpdate(r *record.Resource) error {
	p := wellFormed(r)
	p.must(r.GetMeta().GetRevision() != 0, "meta.revision", "name the revision that the change was made from")
	p.spec(r)
	return p.err("update")
}

// checkStatus is for reports of status.
func checkStatus(r *record.Resource) error {
	p := wellFormed(r)
	p.must(r.GetMeta().GetUid() != "", "meta.uid", "it is needed")
	if err := p.err("report status of"); err != nil {
		return err
	}
	_, err := statusOf(r)
	return err
}

func wellFormed(r *record.Resource) *problems {
	p := &problems{key: record.KeyOf(r)}
	p.must(record.Body(r) == r.GetMeta().GetKind(), "meta.kind", "it is not the kind of the content")
	for _, path := range unknownFields(r) {
		p.must(false, path, "it has a field that this coordinator does not know")
	}
	return p
}

// spec checks what the spec of each kind needs.
func (p *problems) spec(r *record.Resource) {
	if n := asks(r); n > maxAsked {
		p.must(false, "spec", fmt.Sprintf("spec and labels have %d bytes, at most %d are taken", n, maxAsked))
	}
	switch record.Body(r) {
	case record.Sandbox:
		spec := r.GetSandbox().GetSpec()
		p.must(spec != nil, "sandbox.spec", "it is needed")
		p.must(len(record.DiskNames(spec)) <= record.MaxDisks, "sandbox.spec.containers.disks",
			fmt.Sprintf("a sandbox has at most %d different disks", record.MaxDisks))
		for _, c := range spec.GetContainers() {
			paths := map[string]bool{}
			for _, d := range c.GetDisks() {
				p.must(!paths[d.GetPath()], "sandbox.spec.containers.disks.path", "two disks are at "+d.GetPath())
				paths[d.GetPath()] = true
			}
			names := map[string]bool{}
			for _, e := range c.GetEnv() {
				p.must(!names[e.GetName()], "sandbox.spec.containers.env.name", "it names "+e.GetName()+" twice")
				names[e.GetName()] = true
			}
		}
	case record.Disk:
		p.must(r.GetDisk().GetSpec() != nil, "disk.spec", "it is needed")
	case record.Service:
		p.must(r.GetService().GetSpec() != nil, "service.spec", "it is needed")
	}
}

// asks is the size of what a caller asks for.
func asks(r *record.Resource) int {
	n := proto.Size(&resourcev1.Metadata{Labels: r.GetMeta().GetLabels()})
	if spec := record.Spec(r); spec != nil {
		n += proto.Size(spec)
	}
	return n
}

// unknownFields lists the messages inside m that carry fields of a newer
// contract: to keep the rest and drop those would change what was asked for.
func unknownFields(m proto.Message) []string {
	var paths []string
	err := protorange.Range(m.ProtoReflect(), func(values protopath.Values) error {
		inner, ok := values.Index(-1).Value.Interface().(protoreflect.Message)
		if ok && len(inner.GetUnknown()) > 0 {
			paths = append(paths, values.Path.String())
		}
		return nil
	})
	if err != nil {
		return []string{err.Error()}
	}
	return paths
}
