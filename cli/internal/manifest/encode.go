package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// JSON is the text of a message as JSON with the names of the contract, indented.
// A record has the shape of a document that Read takes.
func JSON(m proto.Message) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return out.Bytes(), nil
}

// YAML is the same as YAML.
func YAML(m proto.Message) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil { // JSON is YAML, and keeps its order here
		return nil, fmt.Errorf("encode message: %w", err)
	}
	block(&doc)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return out.Bytes(), nil
}

// block takes the look of JSON off; the encoder quotes what needs it.
func block(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && oldBool[strings.ToLower(n.Value)] {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		block(c)
	}
}

// oldBool are the words that other readers of YAML take for yes or no.
var oldBool = map[string]bool{"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true}

func compact(m proto.Message) ([]byte, error) {
	if r, ok := m.(*resourcev1.Resource); ok {
		return document(r)
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil { // the encoder adds spaces at random
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return out.Bytes(), nil
}

// document writes the record as one mapping: what the creator says first, then
// what the system keeps.
func document(r *resourcev1.Resource) ([]byte, error) {
	meta, err := fieldsOf(r.GetMeta())
	if err != nil {
		return nil, err
	}
	body, err := fieldsOf(bodyOf(r))
	if err != nil {
		return nil, err
	}
	kind, err := json.Marshal(kindWord(r.GetMeta().GetKind()))
	if err != nil {
		return nil, fmt.Errorf("encode kind: %w", err)
	}
	var out bytes.Buffer
	out.WriteString(`{"kind":` + string(kind))
	put := func(from map[string]json.RawMessage, keys ...string) {
		for _, key := range keys {
			if v, ok := from[key]; ok {
				fmt.Fprintf(&out, ",%q:%s", key, v)
			}
		}
	}
	put(meta, "name", "labels")
	put(body, "spec")
	put(meta, "uid", "revision", "generation", "owner", "created_at", "deleting_at")
	put(body, "placement", "status")
	out.WriteByte('}')
	return out.Bytes(), nil
}

func bodyOf(r *resourcev1.Resource) proto.Message {
	m := r.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
	if field == nil || field.Kind() != protoreflect.MessageKind {
		return nil
	}
	return m.Get(field).Message().Interface()
}

func fieldsOf(m proto.Message) (map[string]json.RawMessage, error) {
	if m == nil {
		return nil, nil
	}
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	var out map[string]json.RawMessage
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return out, nil
}
