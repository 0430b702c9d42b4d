package manifest

import (
	"encoding/base64"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/config"
)

// decoder walks YAML and a message side by side and collects what is wrong.
type decoder struct {
	problems []config.Problem
	lines    map[string]int // by dotted path
}

func (d *decoder) add(line int, key, text, remedy string) {
	d.problems = append(d.problems, config.Problem{Line: line, Key: key, Text: text, Remedy: remedy})
}

func (d *decoder) unknown(n *yaml.Node, key, name string, known []string) {
	if near := config.Nearest(name, known); near != "" {
		d.add(n.Line, key, "the key is unknown", fmt.Sprintf("the nearest known key is %q", near))
		return
	}
	d.add(n.Line, key, "the key is unknown", "known keys here are "+strings.Join(known, ", "))
}

type pair struct{ key, value *yaml.Node }

// pairs yields the entries of a mapping and reports doubled keys.
func (d *decoder) pairs(n *yaml.Node, key string) iter.Seq2[string, pair] {
	return func(yield func(string, pair) bool) {
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if k.Kind != yaml.ScalarNode {
				d.add(k.Line, key, "a key is not a text", "")
				continue
			}
			if first, again := seen[k.Value]; again {
				d.add(k.Line, join(key, k.Value), fmt.Sprintf("the key is already given in line %d", first), "remove one")
				continue
			}
			seen[k.Value] = k.Line
			if !yield(k.Value, pair{k, n.Content[i+1]}) {
				return
			}
		}
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// message decodes a mapping into m.
func (d *decoder) message(n *yaml.Node, m protoreflect.Message, key string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, key, "a group of keys", "indented lines of key: value")
		return
	}
	fields := m.Descriptor().Fields()
	for name, p := range d.pairs(n, key) {
		f := fields.ByName(protoreflect.Name(name))
		if f == nil {
			d.unknown(p.key, join(key, name), name, namesOf(fields))
			continue
		}
		d.lines[join(key, name)] = p.key.Line
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() && m.WhichOneof(one) != nil {
			d.add(p.key.Line, join(key, name), fmt.Sprintf("there is %s already", m.WhichOneof(one).Name()), "write one of the two")
			continue
		}
		d.field(p.value, m, f, join(key, name), depth+1)
	}
}

func namesOf(fields protoreflect.FieldDescriptors) []string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	slices.Sort(names)
	return names
}

// field decodes one value into field f of m.
func (d *decoder) field(n *yaml.Node, m protoreflect.Message, f protoreflect.FieldDescriptor, key string, depth int) {
	switch {
	case depth > maxDepth:
		d.add(n.Line, key, fmt.Sprintf("nested deeper than %d levels", maxDepth), "")
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.add(n.Line, key, "anchors and aliases are not used here", "write the value out")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.add(n.Line, key, "the value is missing", "write one, or remove the key")
	case f.IsMap():
		d.mapping(n, m.Mutable(f).Map(), key)
	case f.IsList():
		d.list(n, m.Mutable(f).List(), f, key, depth)
	default:
		if v, ok := d.single(n, m.NewField(f), f, key, depth); ok {
			m.Set(f, v)
		}
	}
}

// mapping decodes a map of texts, the only kind of map in the contracts.
func (d *decoder) mapping(n *yaml.Node, m protoreflect.Map, key string) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, key, "a group of keys", "indented lines of key: value")
		return
	}
	for name, p := range d.pairs(n, key) {
		d.lines[join(key, name)] = p.key.Line
		if p.value.Kind != yaml.ScalarNode || p.value.Tag != "!!str" {
			d.mismatch(p.value, join(key, name), "a text", "a text, in quotes where it looks like something else")
			continue
		}
		m.Set(protoreflect.ValueOfString(name).MapKey(), protoreflect.ValueOfString(p.value.Value))
	}
}

func (d *decoder) list(n *yaml.Node, l protoreflect.List, f protoreflect.FieldDescriptor, key string, depth int) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, key, "a list", "a list like [a, b]")
		return
	}
	for i, item := range n.Content {
		itemKey := fmt.Sprintf("%s[%d]", key, i)
		d.lines[itemKey] = item.Line
		if v, ok := d.single(item, l.NewElement(), f, itemKey, depth+1); ok {
			l.Append(v)
		}
	}
}

// single decodes one value that is no list and no map.
func (d *decoder) single(n *yaml.Node, empty protoreflect.Value, f protoreflect.FieldDescriptor, key string, depth int) (protoreflect.Value, bool) {
	if f.Kind() == protoreflect.MessageKind {
		return d.messageValue(n, empty, f, key, depth)
	}
	if n.Kind != yaml.ScalarNode {
		d.mismatch(n, key, "one value", "a single value")
		return empty, false
	}
	if f.Kind() == protoreflect.EnumKind {
		return d.enum(n, f.Enum(), key)
	}
	return d.scalar(n, f, key)
}

func (d *decoder) messageValue(n *yaml.Node, empty protoreflect.Value, f protoreflect.FieldDescriptor, key string, depth int) (protoreflect.Value, bool) {
	switch f.Message().FullName() {
	case "google.protobuf.Duration":
		v, err := time.ParseDuration(n.Value)
		if err != nil || n.Kind != yaml.ScalarNode {
			d.mismatch(n, key, "a duration", "a number with unit, like 250ms, 10s or 5m")
			return empty, false
		}
		return protoreflect.ValueOfMessage(durationpb.New(v).ProtoReflect()), true
	case "google.protobuf.Timestamp":
		v, err := time.Parse(time.RFC3339Nano, n.Value)
		if err != nil || n.Kind != yaml.ScalarNode {
			d.mismatch(n, key, "a time", "a time like 2026-01-31T12:00:00Z")
			return empty, false
		}
		return protoreflect.ValueOfMessage(timestamppb.New(v).ProtoReflect()), true
	}
	d.message(n, empty.Message(), key, depth)
	return empty, true
}

// enum takes the whole name of a value or the part that tells it from the others
// of its enum, in either case: RESTART_POLICY_NEVER, or never.
func (d *decoder) enum(n *yaml.Node, e protoreflect.EnumDescriptor, key string) (protoreflect.Value, bool) {
	values := e.Values()
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	word := strings.ReplaceAll(strings.ToUpper(n.Value), "-", "_")
	var known []string
	for i := 1; i < values.Len(); i++ {
		v := values.Get(i)
		short := strings.TrimPrefix(string(v.Name()), prefix)
		if word == string(v.Name()) || word == short {
			return protoreflect.ValueOfEnum(v.Number()), true
		}
		known = append(known, strings.ReplaceAll(strings.ToLower(short), "_", "-"))
	}
	d.add(n.Line, key, fmt.Sprintf("%q is not known", n.Value), "write one of "+strings.Join(known, ", "))
	return protoreflect.Value{}, false
}

func (d *decoder) scalar(n *yaml.Node, f protoreflect.FieldDescriptor, key string) (protoreflect.Value, bool) {
	switch f.Kind() {
	case protoreflect.StringKind:
		if n.Tag == "!!str" {
			return protoreflect.ValueOfString(n.Value), true
		}
		d.mismatch(n, key, "a text", "it in quotes")
	case protoreflect.BytesKind:
		raw, err := base64.StdEncoding.DecodeString(n.Value)
		if err == nil && (n.Tag == "!!str" || n.Tag == "!!binary") {
			return protoreflect.ValueOfBytes(raw), true
		}
		d.mismatch(n, key, "bytes", "them in base64, in quotes")
	case protoreflect.BoolKind:
		if n.Tag == "!!bool" {
			return protoreflect.ValueOfBool(strings.EqualFold(n.Value, "true")), true
		}
		d.mismatch(n, key, "true or false", "true or false")
	case protoreflect.Int64Kind, protoreflect.Uint64Kind, protoreflect.Int32Kind, protoreflect.Uint32Kind:
		return d.number(n, f, key)
	default:
		d.add(n.Line, key, "values of this type cannot be written", "remove the key")
	}
	return protoreflect.Value{}, false
}

// number takes a whole number, also as a text (the form of 64-bit numbers in
// JSON), and a size with unit for a field that counts bytes.
func (d *decoder) number(n *yaml.Node, f protoreflect.FieldDescriptor, key string) (protoreflect.Value, bool) {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	bytesField := strings.HasSuffix(string(f.Name()), "_bytes")
	if err != nil && bytesField {
		var size config.Size
		err = size.UnmarshalText([]byte(n.Value))
		v = size.Bytes()
	}
	if err != nil {
		remedy := "a whole number"
		if bytesField {
			remedy = "a number of bytes, or a size like 512MiB"
		}
		d.mismatch(n, key, "a whole number", remedy)
		return protoreflect.Value{}, false
	}
	switch kind := f.Kind(); {
	case kind == protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v), true
	case kind == protoreflect.Uint64Kind && v >= 0:
		return protoreflect.ValueOfUint64(uint64(v)), true
	case kind == protoreflect.Int32Kind && v >= math.MinInt32 && v <= math.MaxInt32:
		return protoreflect.ValueOfInt32(int32(v)), true
	case kind == protoreflect.Uint32Kind && v >= 0 && v <= math.MaxUint32:
		return protoreflect.ValueOfUint32(uint32(v)), true
	}
	d.add(n.Line, key, "the number is out of range", "")
	return protoreflect.Value{}, false
}

func (d *decoder) mismatch(n *yaml.Node, key, wanted, write string) {
	is := fmt.Sprintf("%q", n.Value)
	switch n.Kind {
	case yaml.MappingNode:
		is = "a group of keys"
	case yaml.SequenceNode:
		is = "a list"
	}
	d.add(n.Line, key, fmt.Sprintf("the value is %s, not %s", is, wanted), "write "+write)
}
