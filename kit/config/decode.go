package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds on a file before it is looked at.
const (
	maxFileSize = 1 << 20
	maxDepth    = 32
	maxProblems = 50
)

// Validator is what a decoded value may implement to check what types cannot
// say. Keys of its problems are dotted paths as in the file; Decode adds lines.
type Validator interface {
	Validate() []Problem
}

// ReadFile reads a configuration file. Absence and excess are *Error.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fileProblem(path, 0, "the file does not exist", "create it, or name another with --config")
	}
	if err != nil {
		return nil, fileProblem(path, 0, err.Error(), "make it a readable file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fileProblem(path, 0, err.Error(), "make it a readable file")
	}
	return data, nil
}

// Decode reads one YAML document strictly into a struct that holds the defaults.
// Everything wrong is reported at once as *Error: unknown, doubled and missing
// keys, wrong types, and what Validate of into says. into is meaningless after an
// error.
func Decode(file string, data []byte, into any) error {
	root, err := parse(file, data)
	if err != nil {
		return err
	}
	d := &decoder{lines: map[string]int{}}
	d.value(root, reflect.ValueOf(into).Elem(), "", 0)
	if v, ok := into.(Validator); ok {
		for _, p := range v.Validate() {
			d.add(d.line(p.Key), p.Key, p.Text, p.Remedy)
		}
	}
	return d.failure(file)
}

// parse checks the bytes and returns the root mapping of the only document.
func parse(file string, data []byte) (*yaml.Node, error) {
	switch {
	case len(data) > maxFileSize:
		return nil, fileProblem(file, 0, fmt.Sprintf("the file is larger than %d bytes", maxFileSize), "")
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return nil, fileProblem(file, 1, "the file begins with a byte order mark", "save it as UTF-8 without one")
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := in.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, fileProblem(file, 1, "the file is empty", `write at least "version: 1"`)
	}
	if err != nil {
		return nil, syntaxProblem(file, data, err)
	}
	if err := in.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntaxProblem(file, data, err)
		}
		return nil, fileProblem(file, more.Line, "the file has a second document", "remove it")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, fileProblem(file, 1, "the file is empty", `write at least "version: 1"`)
	}
	if root.Kind != yaml.MappingNode {
		return nil, fileProblem(file, root.Line, "the file is "+kindOf(root)+", not keys and values", "")
	}
	return root, nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntaxProblem turns the parser's error into ours, with its line where it has
// one, and names the tab where that is the cause.
func syntaxProblem(file string, data []byte, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits by the expression; too many leave 0
		text = strings.Replace(text, m[0], "", 1)
	}
	for i, l := range strings.Split(string(data), "\n") {
		if indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]; strings.Contains(indent, "\t") {
			return fileProblem(file, i+1, "a tab is used for indentation", "use spaces")
		}
	}
	return fileProblem(file, line, "the file is no YAML: "+text, "")
}

func fileProblem(file string, line int, text, remedy string) *Error {
	return &Error{File: file, Problems: []Problem{{Line: line, Text: text, Remedy: remedy}}}
}

// decoder walks nodes and Go values side by side and collects what is wrong.
type decoder struct {
	problems []Problem
	lines    map[string]int // by dotted path
}

func (d *decoder) add(line int, key, text, remedy string) {
	d.problems = append(d.problems, Problem{Line: line, Key: key, Text: text, Remedy: remedy})
}

func (d *decoder) failure(file string) error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
	if n := len(d.problems); n > maxProblems {
		d.problems = append(d.problems[:maxProblems], Problem{Text: fmt.Sprintf("and %d more problems", n-maxProblems)})
	}
	return &Error{File: file, Problems: d.problems}
}

// line finds where a key, or the nearest part of the file around it, was written.
func (d *decoder) line(key string) int {
	for {
		if l, ok := d.lines[key]; ok {
			return l
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return 0
		}
		key = key[:i]
	}
}

// value decodes one node into v, which is settable.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string, depth int) {
	if key != "" {
		d.lines[key] = n.Line
	}
	switch {
	case depth > maxDepth:
		d.add(n.Line, key, fmt.Sprintf("nested deeper than %d levels", maxDepth), "")
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.add(n.Line, key, "anchors and aliases are not used here", "write the value out")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.add(n.Line, key, "the value is missing", "write "+example(v)+", or remove the key")
	default:
		d.typed(n, v, key, depth)
	}
}

func (d *decoder) typed(n *yaml.Node, v reflect.Value, key string, depth int) {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, u, v, key)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		d.value(n, fresh.Elem(), key, depth)
		v.Set(fresh)
	case reflect.Struct:
		d.structure(n, v, key, depth)
	case reflect.Map:
		d.mapping(n, v, key, depth)
	case reflect.Slice:
		d.list(n, v, key, depth)
	default:
		d.scalar(n, v, key)
	}
}

func (d *decoder) text(n *yaml.Node, u encoding.TextUnmarshaler, v reflect.Value, key string) {
	if n.Kind != yaml.ScalarNode {
		d.mismatch(n, v, key)
		return
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		text, remedy, _ := strings.Cut(err.Error(), "; ")
		if remedy == "" {
			remedy = "write " + example(v)
		}
		d.add(n.Line, key, text, remedy)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, key string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, v, key)
		return
	}
	fields := fieldsOf(v.Type())
	for name, node := range d.pairs(n, key) {
		i, known := fields[name]
		if !known {
			d.unknown(node.key, join(key, name), name, fields)
			continue
		}
		d.value(node.value, v.Field(i), join(key, name), depth+1)
	}
}

func (d *decoder) unknown(n *yaml.Node, key, name string, fields map[string]int) {
	names := make([]string, 0, len(fields))
	for f := range fields {
		names = append(names, f)
	}
	slices.Sort(names)
	if near := Nearest(name, names); near != "" {
		d.add(n.Line, key, "the key is unknown", fmt.Sprintf("the nearest known key is %q", near))
		return
	}
	d.add(n.Line, key, "the key is unknown", "known keys here are "+strings.Join(names, ", "))
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, key string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, v, key)
		return
	}
	m := reflect.MakeMap(v.Type())
	for name, node := range d.pairs(n, key) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(node.value, item, join(key, name), depth+1)
		m.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), item)
	}
	v.Set(m)
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, key string, depth int) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, v, key)
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, node := range n.Content {
		d.value(node, s.Index(i), fmt.Sprintf("%s[%d]", key, i), depth+1)
	}
	v.Set(s)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind != yaml.ScalarNode || !scalarFits(n.Tag, v.Kind()) || n.Decode(v.Addr().Interface()) != nil {
		d.mismatch(n, v, key)
	}
}

// scalarFits refuses what YAML would convert silently: a number or a yes for a
// text, a text for a number.
func scalarFits(tag string, kind reflect.Kind) bool {
	switch kind {
	case reflect.String:
		return tag == "!!str"
	case reflect.Bool:
		return tag == "!!bool"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint16, reflect.Uint32:
		return tag == "!!int"
	}
	return false
}

func (d *decoder) mismatch(n *yaml.Node, v reflect.Value, key string) {
	d.add(n.Line, key, "the value is "+kindOf(n)+", not "+wanted(v), "write "+example(v))
}
