package manifest

import (
	"errors"
	"strings"
	"sync"

	"buf.build/go/protovalidate"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/rpc/validate/words"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// validator compiles the contract's rules once, when something is applied.
var validator = sync.OnceValues(func() (protovalidate.Validator, error) { return protovalidate.New() })

// spec decodes the spec of the document's kind into the record. A sandbox that
// does not say whether it should run should run: that is what a person who
// describes one means.
func (d *decoder) spec(root, n *yaml.Node, r *resourcev1.Resource) {
	var into proto.Message
	switch r.GetMeta().GetKind() {
	case resourcev1.Kind_KIND_SANDBOX:
		spec := &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING}
		r.Kind, into = &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: spec}}, spec
	case resourcev1.Kind_KIND_SERVICE:
		spec := &resourcev1.ServiceSpec{}
		r.Kind, into = &resourcev1.Resource_Service{Service: &resourcev1.Service{Spec: spec}}, spec
	case resourcev1.Kind_KIND_DISK:
		spec := &resourcev1.DiskSpec{}
		r.Kind, into = &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: spec}}, spec
	default:
		spec := &resourcev1.NodeSpec{}
		r.Kind, into = &resourcev1.Resource_Node{Node: &resourcev1.Node{Spec: spec}}, spec
	}
	switch {
	case n != nil:
		d.message(n, into.ProtoReflect(), "spec", 0)
	case r.GetMeta().GetKind() == resourcev1.Kind_KIND_SANDBOX, r.GetMeta().GetKind() == resourcev1.Kind_KIND_SERVICE:
		d.add(root.Line, "spec", "the key is missing", "write spec: and what the "+strings.ToLower(kindWord(r.GetMeta().GetKind()))+" should be")
	}
}

// validate checks the rules of the contract and reports each violation with the
// line of its key.
func (d *decoder) validate(r *resourcev1.Resource) {
	v, err := validator()
	if err != nil {
		d.add(d.lines[""], "", "the rules of the contract cannot be used: "+err.Error(), "")
		return
	}
	err = v.Validate(r)
	if err == nil {
		return
	}
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		d.add(d.lines[""], "", err.Error(), "")
		return
	}
	for _, violation := range broken.Violations {
		key := documentKey(protovalidate.FieldPathString(violation.Proto.GetField()))
		d.add(d.lineOf(key), key, words.Of(violation.Proto), "")
	}
}

// documentKey turns a path in the record into one in the document.
func documentKey(path string) string {
	first, rest, _ := strings.Cut(path, ".")
	switch first {
	case "meta", "sandbox", "service", "disk", "node":
		return rest
	}
	return path
}

// lineOf finds where a key, or the nearest part of the document around it, was
// written.
func (d *decoder) lineOf(key string) int {
	for {
		if line, ok := d.lines[key]; ok {
			return line
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return d.lines[""]
		}
		key = key[:i]
	}
}
