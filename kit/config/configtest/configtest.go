// Package configtest holds a documented sample of a configuration file to what
// the code does.
//
// A sample writes out every key of the schema under a comment of its own. A key
// with a default is written with that default; one without stands behind a "#"
// that no space follows, as an example. A comment that says "from A to B" states
// the bounds of its key. It must never be linked into a program: it is for the
// tests beside a schema, here and in the coordinator.
package configtest

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"staddle.internal/kit/config"
)

var (
	example = regexp.MustCompile(`(?m)^(\s*)#(\S)`)
	value   = regexp.MustCompile(`^(\s*(?:- )?[a-z_]+: ).*$`)
	bounds  = regexp.MustCompile(`(?i)\bfrom (\S+) to (\w+)`)
)

// Sample fails the test unless the file at path, decoded strictly over defaults,
// is the defaults; unless its examples decode as well; and unless every key of
// the schema is there, documented, and bounded as its comment says. The keys in
// byMachine have a default that differs from machine to machine.
func Sample[T any](t *testing.T, path string, defaults T, byMachine ...string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := defaults // decoding puts new maps and lists in the place of old ones
	if err := config.Decode(path, data, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, defaults) {
		t.Errorf("the sample states defaults that are none:\ngot  %+v\nwant %+v", got, defaults)
	}
	whole := string(example.ReplaceAll(data, []byte("$1$2")))
	decode := func(text string) error {
		into := defaults
		return config.Decode(path, []byte(text), &into)
	}
	if err := decode(whole); err != nil {
		t.Fatalf("with its examples: %v", err)
	}
	s := sample{lines: strings.Split(whole, "\n"), written: keysOf(t, data), keys: keysOf(t, []byte(whole)), decode: decode}
	for _, key := range schema(reflect.TypeFor[T](), "") {
		s.check(t, key, hasDefault(reflect.ValueOf(defaults), key) && !slices.Contains(byMachine, key))
	}
}

// sample is one file with its examples taken in.
type sample struct {
	lines   []string
	written map[string]int // line by key, without the examples
	keys    map[string]int // line by key
	decode  func(text string) error
}

func (s *sample) check(t *testing.T, key string, hasDefault bool) {
	t.Helper()
	line, ok := s.keys[key]
	if !ok {
		t.Errorf("%s: the sample does not have it", key)
		return
	}
	if _, ok := s.written[key]; !ok && hasDefault {
		t.Errorf("%s: it has a default, and the sample does not state it", key)
	}
	comment := s.comment(line)
	if comment == "" {
		t.Errorf("%s: no comment stands right above line %d", key, line)
	}
	if m := bounds.FindStringSubmatch(comment); m != nil {
		s.checkBound(t, key, line, m[1], -1)
		s.checkBound(t, key, line, m[2], +1)
	}
}

// comment joins the comment lines right above a line.
func (s *sample) comment(line int) string {
	var out []string
	for i := line - 2; i >= 0; i-- {
		text, ok := strings.CutPrefix(strings.TrimSpace(s.lines[i]), "#")
		if !ok {
			break
		}
		out = append(out, strings.TrimSpace(text))
	}
	slices.Reverse(out)
	return strings.Join(out, " ")
}

// checkBound tries the value at a bound, and the one beyond it.
func (s *sample) checkBound(t *testing.T, key string, line int, bound string, step int64) {
	t.Helper()
	beyond, err := add(bound, step)
	if err != nil {
		t.Errorf("%s: %v", key, err)
		return
	}
	if err := s.problem(key, line, bound); err != nil {
		t.Errorf("%s: its bound %s is refused: %v", key, bound, err)
	}
	if s.problem(key, line, beyond) == nil {
		t.Errorf("%s: %s is accepted beyond the bound %s", key, beyond, bound)
	}
}

// problem is what the decoder says about a key when it has this value.
func (s *sample) problem(key string, line int, text string) error {
	lines := slices.Clone(s.lines)
	lines[line-1] = value.ReplaceAllString(lines[line-1], "${1}"+text)
	err := s.decode(strings.Join(lines, "\n"))
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*config.Error](err)
	if !ok {
		return err
	}
	for _, p := range wrong.Problems {
		if key == strings.ReplaceAll(p.Key, "[0]", "[]") {
			return errors.New(p.Text)
		}
	}
	return nil
}

// add returns the value one unit of its type further.
func add(text string, step int64) (string, error) {
	var d config.Duration
	var size config.Size
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return strconv.FormatInt(n+step, 10), nil
	}
	if err := d.UnmarshalText([]byte(text)); err == nil {
		return (d + config.Duration(step)).String(), nil
	}
	if err := size.UnmarshalText([]byte(text)); err == nil {
		return fmt.Sprintf("%dB", size.Bytes()+step), nil
	}
	return "", fmt.Errorf("the bound %q is neither number, duration nor size", text)
}

// schema lists the keys of a struct, groups before what is in them.
func schema(typ reflect.Type, prefix string) []string {
	var out []string
	for i := range typ.NumField() {
		key := prefix + typ.Field(i).Tag.Get("yaml")
		out = append(out, key)
		field := typ.Field(i).Type
		if field.Kind() == reflect.Slice {
			field, key = field.Elem(), key+"[]"
		}
		if field.Kind() == reflect.Struct && !reflect.PointerTo(field).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			out = append(out, schema(field, key+".")...)
		}
	}
	return out
}

// hasDefault reports whether a key is a value that is not zero by default.
func hasDefault(v reflect.Value, key string) bool {
	for part := range strings.SplitSeq(key, ".") {
		if strings.HasSuffix(part, "[]") {
			return false
		}
		i := slices.IndexFunc(reflect.VisibleFields(v.Type()), func(f reflect.StructField) bool { return f.Tag.Get("yaml") == part })
		v = v.Field(i)
	}
	return !v.IsZero()
}

// keysOf finds the line of every key of a file.
func keysOf(t *testing.T, data []byte) map[string]int {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	collect(&doc, "", out)
	return out
}

func collect(n *yaml.Node, prefix string, out map[string]int) {
	switch n.Kind {
	case yaml.DocumentNode:
		collect(n.Content[0], prefix, out)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			collect(item, prefix+"[]", out)
		}
	case yaml.MappingNode:
		if prefix != "" {
			prefix += "."
		}
		for i := 0; i < len(n.Content); i += 2 {
			out[prefix+n.Content[i].Value] = n.Content[i].Line
			collect(n.Content[i+1], prefix+n.Content[i].Value, out)
		}
	}
}
