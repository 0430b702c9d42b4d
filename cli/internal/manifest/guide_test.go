package manifest_test

import (
	"os"
	"strings"
	"testing"

	"buf.build/go/protovalidate"

	"staddle.internal/cli/internal/manifest"
)

// The example of the guide is a record as it is.
func TestRead_TakesTheGuide(t *testing.T) {
	const page = "../../../docs/guide/life.md"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(raw), "```yaml\n")
	example, _, ended := strings.Cut(example, "```")
	if !found || !ended {
		t.Fatalf("%s has no example", page)
	}
	docs, err := manifest.Read(page, strings.NewReader(example))
	if err != nil || len(docs) != 1 {
		t.Fatalf("got %d records, %v", len(docs), err)
	}
	if err := protovalidate.Validate(docs[0].Record.GetSandbox().GetSpec()); err != nil {
		t.Error(err)
	}
}
