package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDocuments bounds the records of one file.
const maxDocuments = 1000

// DecodeProtos reads every document of a YAML file strictly into a message that
// fresh makes. Keys are the names of fields as in the contract, in snake_case or
// camelCase; values are as in the JSON form of the message, such as "10s" for a
// duration. Everything wrong in any document is reported at once as *Error.
func DecodeProtos[M proto.Message](file string, data []byte, fresh func() M) ([]M, error) {
	if len(data) > maxFileSize {
		return nil, fileProblem(file, 0, fmt.Sprintf("the file is larger than %d bytes", maxFileSize), "")
	}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return nil, fileProblem(file, 1, "the file begins with a byte order mark", "save it as UTF-8 without one")
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	d := &decoder{lines: map[string]int{}}
	var out []M
	for {
		var doc yaml.Node
		err := in.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, syntaxProblem(file, data, err)
		}
		if len(out) == maxDocuments {
			return nil, fileProblem(file, doc.Line, fmt.Sprintf("the file has more than %d documents", maxDocuments), "split it")
		}
		if root := doc.Content[0]; root.Tag != "!!null" {
			msg := fresh()
			d.message(root, msg.ProtoReflect(), "", 0)
			out = append(out, msg)
		}
	}
	if len(out) == 0 && len(d.problems) == 0 {
		return nil, fileProblem(file, 1, "the file is empty", "write at least one record")
	}
	if err := d.failure(file); err != nil {
		return nil, err
	}
	return out, nil
}

// message decodes a mapping into a message, field by field, so that each problem
// has its line.
func (d *decoder) message(n *yaml.Node, m protoreflect.Message, key string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.add(n.Line, key, "the value is "+kindOf(n)+", not a group of keys", "write indented lines of key: value")
		return
	}
	if depth > maxDepth {
		d.add(n.Line, key, fmt.Sprintf("nested deeper than %d levels", maxDepth), "")
		return
	}
	fields := m.Descriptor().Fields()
	for name, node := range d.pairs(n, key) {
		path := join(key, name)
		fd := fields.ByName(protoreflect.Name(name))
		if fd == nil {
			fd = fields.ByJSONName(name)
		}
		switch {
		case fd == nil:
			d.unknown(node.key, path, name, namesOf(fields))
		case m.Has(fd) && !fd.IsList() && !fd.IsMap():
			d.add(node.key.Line, path, "the key is given in both spellings", "remove one")
		case fd.ContainingOneof() != nil && m.WhichOneof(fd.ContainingOneof()) != nil:
			other := m.WhichOneof(fd.ContainingOneof()).Name()
			d.add(node.key.Line, path, fmt.Sprintf("only one of %s and %s may be given", other, name), "remove one")
		default:
			d.field(node.value, m, fd, path, depth)
		}
	}
}

func namesOf(fields protoreflect.FieldDescriptors) map[string]int {
	out := map[string]int{}
	for i := range fields.Len() {
		out[string(fields.Get(i).Name())] = i
	}
	return out
}

func (d *decoder) field(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, key string, depth int) {
	nested := fd.Message() != nil && !fd.IsMap() && !strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf.")
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.add(n.Line, key, "the value is missing", "write one, or remove the key")
	case nested && fd.IsList():
		d.messages(n, m.Mutable(fd).List(), key, depth)
	case nested:
		d.message(n, m.Mutable(fd).Message(), key, depth+1)
	default:
		d.leaf(n, m, fd, key)
	}
}

func (d *decoder) messages(n *yaml.Node, list protoreflect.List, key string, depth int) {
	if n.Kind != yaml.SequenceNode {
		d.add(n.Line, key, "the value is "+kindOf(n)+", not a list", "write one item per line, each after a dash")
		return
	}
	for i, item := range n.Content {
		element := list.NewElement()
		d.message(item, element.Message(), fmt.Sprintf("%s[%d]", key, i), depth+1)
		list.Append(element)
	}
}

// leaf lets the JSON form of the message judge a value that has no messages of
// ours below it.
func (d *decoder) leaf(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, key string) {
	value, ok := d.jsonValue(n, key, 0)
	if !ok {
		return
	}
	text, err := json.Marshal(map[string]any{fd.JSONName(): value})
	if err != nil {
		d.add(n.Line, key, "the value cannot be read: "+err.Error(), "")
		return
	}
	part := m.New().Interface()
	if err := protojson.Unmarshal(text, part); err != nil {
		d.add(n.Line, key, "the value is "+kindOf(n)+", not "+wantedField(fd), exampleField(fd))
		return
	}
	proto.Merge(m.Interface(), part)
}

// jsonValue turns a node into what encoding/json prints. Doubled keys are
// reported, and anchors refused.
func (d *decoder) jsonValue(n *yaml.Node, key string, depth int) (any, bool) {
	switch {
	case depth > maxDepth || n.Kind == yaml.AliasNode || n.Anchor != "":
		d.add(n.Line, key, "anchors, aliases and deep nests are not used here", "write the value out")
		return nil, false
	case n.Kind == yaml.MappingNode:
		out := map[string]any{}
		for name, node := range d.pairs(n, key) {
			v, ok := d.jsonValue(node.value, join(key, name), depth+1)
			if !ok {
				return nil, false
			}
			out[name] = v
		}
		return out, true
	case n.Kind == yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			v, ok := d.jsonValue(item, fmt.Sprintf("%s[%d]", key, i), depth+1)
			if !ok {
				return nil, false
			}
			out = append(out, v)
		}
		return out, true
	}
	switch n.Tag {
	case "!!int", "!!float":
		return json.Number(n.Value), json.Valid([]byte(n.Value)) || d.noNumber(n, key)
	case "!!bool":
		return n.Value == "true", n.Value == "true" || n.Value == "false" || d.noNumber(n, key)
	}
	return n.Value, true
}

func (d *decoder) noNumber(n *yaml.Node, key string) bool {
	d.add(n.Line, key, fmt.Sprintf("%q is not written as we read it", n.Value), "write true, false or a plain decimal number, or put a text in quotes")
	return false
}

func wantedField(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.IsMap():
		return "a group of keys"
	case fd.IsList():
		return "a list of " + wantedKind(fd)
	}
	return wantedKind(fd)
}

func wantedKind(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return "a text"
	case protoreflect.BytesKind:
		return "bytes in base64"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "one of the known words"
	case protoreflect.MessageKind:
		return "a " + strings.ToLower(string(fd.Message().Name()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number"
	}
	return "a whole number in range"
}

func exampleField(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.Kind() == protoreflect.EnumKind:
		var words []string
		for i := range fd.Enum().Values().Len() {
			words = append(words, string(fd.Enum().Values().Get(i).Name()))
		}
		return "write one of " + strings.Join(slices.Compact(words), ", ")
	case fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration":
		return `write seconds, like "10s" or "0.5s"`
	case fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Timestamp":
		return `write a time like "2026-01-02T15:04:05Z"`
	case fd.Kind() == protoreflect.StringKind:
		return "put it in quotes where it looks like a number"
	}
	return ""
}
