package manifest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/cli/internal/manifest"
)

var yamlBlock = regexp.MustCompile("(?m)^```yaml\n((?:[^`].*\n|\n)+)```$")

// The guide shows every key of the specs that people write, in documents that can be
// applied as they stand.
func TestGuide_ShowsEveryKey(t *testing.T) {
	for _, kind := range []struct {
		pages []string
		spec  func(*resourcev1.Resource) protoreflect.Message
	}{
		{[]string{"sandboxes.md", "life.md"}, func(r *resourcev1.Resource) protoreflect.Message { return r.GetSandbox().GetSpec().ProtoReflect() }},
		{[]string{"services.md"}, func(r *resourcev1.Resource) protoreflect.Message { return r.GetService().GetSpec().ProtoReflect() }},
	} {
		shown := map[protoreflect.FullName]bool{}
		for _, page := range kind.pages {
			raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guide", page))
			if err != nil {
				t.Fatal(err)
			}
			blocks := yamlBlock.FindAllStringSubmatch(string(raw), -1)
			if len(blocks) == 0 {
				t.Errorf("%s has no document", page)
			}
			for _, block := range blocks {
				docs, err := manifest.Read(page, strings.NewReader(block[1]))
				if err != nil {
					t.Errorf("%v in:\n%s", err, block[1])
				}
				for _, d := range docs {
					note(kind.spec(d.Record), shown)
				}
			}
		}
		for _, name := range fieldsOf(kind.spec(&resourcev1.Resource{}).Descriptor()) {
			if !shown[name] {
				t.Errorf("none of %v in docs/guide has an example with %s: write one", kind.pages, name)
			}
		}
	}
}

// note marks every field that is set in a message and below it.
func note(m protoreflect.Message, shown map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		shown[f.FullName()] = true
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				note(v.List().Get(i).Message(), shown)
			}
		default:
			note(v.Message(), shown)
		}
		return true
	})
}

// fieldsOf lists the fields of a message of ours and of those in it.
func fieldsOf(d protoreflect.MessageDescriptor) []protoreflect.FullName {
	var all []protoreflect.FullName
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		all = append(all, f.FullName())
		if !f.IsMap() && f.Message() != nil && strings.HasPrefix(string(f.Message().FullName()), "staddle.") {
			all = append(all, fieldsOf(f.Message())...)
		}
	}
	return all
}
