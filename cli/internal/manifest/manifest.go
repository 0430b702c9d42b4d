// Package manifest owns the text form of records: what "staddle apply -f" reads
// and "staddle get -o yaml" writes.
//
// A document has kind, name, labels and spec, with the names of the contract in
// snake_case. It is taken whole or refused whole: unknown keys, wrong types,
// doubled keys and values out of the contract's bounds are reported together,
// each with file, line, key and what to write instead. What only the system
// writes (status, placement, ...) may be there, so that what was read can be
// written back, and is left out of the record. It must never call anybody. In
// the trail it sits before the resource API.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/config"
)

// Bounds on a file before it is looked at.
const (
	maxFile      = 4 << 20
	maxDocuments = 1000
	maxDepth     = 32
)

// kinds that may be applied, by the word in a document.
var kinds = map[string]resourcev1.Kind{
	"Sandbox": resourcev1.Kind_KIND_SANDBOX,
	"Service": resourcev1.Kind_KIND_SERVICE,
	"Disk":    resourcev1.Kind_KIND_DISK,
	"Node":    resourcev1.Kind_KIND_NODE,
}

// kindWord is the word for a kind in a document.
func kindWord(k resourcev1.Kind) string {
	if k == resourcev1.Kind_KIND_DISK_LEASE {
		return "DiskLease"
	}
	for word, kind := range kinds {
		if kind == k {
			return word
		}
	}
	return k.String()
}

// Document is one record to be applied.
type Document struct {
	// Where it stands, as "file:line".
	Where string
	// Record has kind, name, labels and spec.
	Record *resourcev1.Resource
	// UID is the one in the document: the record that exists must have it. Empty
	// means any.
	UID string
	// Generation is the one in the document: a change was made from the record in
	// that generation. 0 means that it was made from none.
	Generation uint64
}

// Read reads all documents of a file. Everything wrong in all of them is one
// *config.Error. No document at all is an error, too.
func Read(file string, in io.Reader) ([]Document, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, problem(file, 0, err.Error())
	}
	if len(data) > maxFile {
		return nil, problem(file, 0, fmt.Sprintf("the file is larger than %d bytes", maxFile))
	}
	roots, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	var docs []Document
	var problems []config.Problem
	for _, root := range roots {
		d := &decoder{lines: map[string]int{}}
		docs = append(docs, d.document(file, root))
		problems = append(problems, d.problems...)
	}
	problems = append(problems, doubled(docs, roots)...)
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b config.Problem) int { return a.Line - b.Line })
		return nil, &config.Error{File: file, Problems: problems}
	}
	return docs, nil
}

// parse returns the root mappings of all documents that are not empty.
func parse(file string, data []byte) ([]*yaml.Node, error) {
	in := yaml.NewDecoder(bytes.NewReader(data))
	var roots []*yaml.Node
	for {
		var doc yaml.Node
		err := in.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, problem(file, 0, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		root := doc.Content[0]
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			continue
		}
		if root.Kind != yaml.MappingNode {
			return nil, problem(file, root.Line, "the document is not keys and values")
		}
		if roots = append(roots, root); len(roots) > maxDocuments {
			return nil, problem(file, root.Line, fmt.Sprintf("more than %d documents", maxDocuments))
		}
	}
	if len(roots) == 0 {
		return nil, problem(file, 1, "there is no document in it")
	}
	return roots, nil
}

func problem(file string, line int, text string) error {
	return &config.Error{File: file, Problems: []config.Problem{{Line: line, Text: text}}}
}

// doubled finds records that are described twice.
func doubled(docs []Document, roots []*yaml.Node) []config.Problem {
	var out []config.Problem
	first := map[string]int{}
	for i, d := range docs {
		meta := d.Record.GetMeta()
		key := meta.GetKind().String() + "/" + meta.GetName()
		if line, again := first[key]; again && meta.GetName() != "" {
			out = append(out, config.Problem{
				Line: roots[i].Line, Key: "name",
				Text: fmt.Sprintf("%s %q is described already in line %d", kindWord(meta.GetKind()), meta.GetName(), line),
			})
			continue
		}
		first[key] = roots[i].Line
	}
	return out
}

// header is the part of a document that is the same for all kinds. Keys that
// only the system writes are read past.
var header = []string{"kind", "name", "labels", "spec", "uid", "revision", "generation", "owner", "created_at", "deleting_at", "placement", "status"}

func (d *decoder) document(file string, root *yaml.Node) Document {
	meta := &resourcev1.Metadata{}
	doc := Document{Where: fmt.Sprintf("%s:%d", file, root.Line), Record: &resourcev1.Resource{Meta: meta}}
	d.lines[""] = root.Line
	values := map[string]*yaml.Node{}
	for key, value := range d.pairs(root, "") {
		if !slices.Contains(header, key) {
			d.unknown(value.key, key, key, header)
			continue
		}
		d.lines[key] = value.key.Line
		values[key] = value.value
	}
	meta.Kind = d.kind(root, values["kind"])
	d.metadata(values, meta, &doc)
	if meta.Kind != resourcev1.Kind_KIND_UNSPECIFIED {
		d.spec(root, values["spec"], doc.Record)
	}
	if len(d.problems) == 0 {
		d.validate(doc.Record)
	}
	return doc
}

func (d *decoder) kind(root, n *yaml.Node) resourcev1.Kind {
	if n == nil {
		d.add(root.Line, "kind", "the key is missing", "write kind: Sandbox, kind: Service, kind: Disk or kind: Node")
		return resourcev1.Kind_KIND_UNSPECIFIED
	}
	if k, ok := kinds[n.Value]; ok && n.Kind == yaml.ScalarNode {
		return k
	}
	d.add(n.Line, "kind", fmt.Sprintf("%q is no kind that can be applied", n.Value), "write Sandbox, Service, Disk or Node")
	return resourcev1.Kind_KIND_UNSPECIFIED
}

func (d *decoder) metadata(values map[string]*yaml.Node, meta *resourcev1.Metadata, doc *Document) {
	text := func(key string) string {
		n := values[key]
		if n == nil {
			return ""
		}
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			d.add(n.Line, key, "the value is no text", "put it in quotes")
			return ""
		}
		return n.Value
	}
	meta.Name, doc.UID = text("name"), text("uid")
	if values["name"] == nil {
		d.add(d.lines[""], "name", "the key is missing", "write name: and 1 to 63 characters of a-z, 0-9 and -")
	}
	if n := values["generation"]; n != nil { // printed as a text, as JSON has no such numbers
		var err error
		if doc.Generation, err = strconv.ParseUint(n.Value, 10, 64); err != nil || n.Kind != yaml.ScalarNode {
			d.add(n.Line, "generation", "the value is no generation", "leave it as it was printed, or remove the key")
		}
	}
	if n := values["labels"]; n != nil {
		field := meta.ProtoReflect().Descriptor().Fields().ByName("labels")
		d.field(n, meta.ProtoReflect(), field, "labels", 0)
	}
}
