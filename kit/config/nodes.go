package config

import (
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pair is one key of a mapping with its value.
type pair struct{ key, value *yaml.Node }

// pairs yields the entries of a mapping and reports keys that are doubled or no
// plain text.
func (d *decoder) pairs(n *yaml.Node, key string) iter.Seq2[string, pair] {
	return func(yield func(string, pair) bool) {
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.Kind != yaml.ScalarNode {
				d.add(k.Line, key, "a key is "+kindOf(k)+", not a text", "")
				continue
			}
			if first, doubled := seen[k.Value]; doubled {
				d.add(k.Line, join(key, k.Value), fmt.Sprintf("the key is already given in line %d", first), "remove one")
				continue
			}
			seen[k.Value] = k.Line
			if !yield(k.Value, pair{k, v}) {
				return
			}
		}
	}
}

// fieldsOf returns the index of each field that has a yaml name.
func fieldsOf(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// kindOf names what stands in the file.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the yes-or-no value " + n.Value
	case "!!null":
		return "empty"
	}
	return fmt.Sprintf("the text %q", n.Value)
}

// wanted names what should stand there.
func wanted(v reflect.Value) string {
	switch v.Addr().Interface().(type) {
	case *Duration:
		return "a duration"
	case *Size:
		return "a size"
	case encoding.TextUnmarshaler:
		return "a text"
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		return "a group of keys"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	}
	return "a whole number"
}

// example shows how a value of v's type is written.
func example(v reflect.Value) string {
	switch v.Addr().Interface().(type) {
	case *Duration:
		return "a duration like 10s"
	case *Size:
		return "a size like 512MiB"
	case encoding.TextUnmarshaler:
		return "a value of its form"
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		return "indented lines of key: value"
	case reflect.Slice:
		return "a list like [a, b]"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return `a text, in quotes where it looks like a number`
	}
	return "a whole number like 1"
}
