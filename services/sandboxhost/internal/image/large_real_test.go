package image

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// What describes an image is read into memory, and its maker chose how long it is:
// one that is too long is refused before it is fetched, and not tried again.
func TestStore_RefusesLargeDescriptions(t *testing.T) {
	s, r := newStore(t)
	registry := newCounted(t)
	ref := registry.host + "/test/prog:1"
	img := testimage.New(t)
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := file.Config
	config.Labels = map[string]string{"long": strings.Repeat("x", maxDescription)}
	if img, err = mutate.Config(img, config); err != nil {
		t.Fatal(err)
	}
	name, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	testimage.Push(t, ref, img)
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Invalid)
	if _, fetched := registry.blobs.Load("/v2/test/prog/blobs/" + name.String()); fetched {
		t.Error("it was fetched")
	}
	_, err = s.Import(t.Context(), bytes.NewReader(testimage.Archive(t, "registry.invalid/test/prog:1", img)))
	wantKind(t, err, fault.Invalid)
	if list, err := r.Client(t).ImageService().List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("entered: %v, %v", list, err)
	}
}
