package image

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	godigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

func TestStore_RemovesWhatNothingNeeds(t *testing.T) {
	s, r := newStore(t)
	const ref = "registry.invalid/test/prog:1"
	if _, err := s.Import(t.Context(), bytes.NewReader(testimage.Archive(t, ref, testimage.New(t)))); err != nil {
		t.Fatal(err)
	}
	_, err := s.Remove(t.Context(), ref, []User{{Name: "sandbox web", Image: ref}}, time.Now())
	wantKind(t, err, fault.Conflict)
	if fault.Reason(err) != "IMAGE_IN_USE" || !strings.Contains(err.Error(), "sandbox web") {
		t.Errorf("in use: got %v", err)
	}
	if _, err := s.Find(t.Context(), ref); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	name, err := s.Remove(t.Context(), ref, []User{{Name: "sandbox other", Image: "registry.invalid/test/prog:2"}}, time.Now())
	if err != nil || name != ref {
		t.Fatalf("got %s, %v", name, err)
	}
	_, err = s.Find(t.Context(), ref)
	wantKind(t, err, fault.NotFound)
	_, err = s.Remove(t.Context(), ref, nil, time.Now())
	wantKind(t, err, fault.NotFound)
	blobs := 0
	if err := r.Client(t).ContentStore().Walk(t.Context(), func(content.Info) error { blobs++; return nil }); err != nil || blobs != 0 {
		t.Errorf("%d parts kept, %v", blobs, err)
	}
}

func TestStore_PreparesAsThePolicySays(t *testing.T) {
	s, _ := newStore(t)
	registry := newCounted(t)
	ref := registry.host + "/test/prog:1"
	testimage.Push(t, ref, testimage.New(t))
	before := registry.asked.Load() // by the push
	asks := func(what string, policy Policy, want bool) {
		t.Helper()
		_, err := s.Prepare(t.Context(), ref, policy, nil)
		if err != nil || (registry.asked.Load() != before) != want {
			t.Errorf("%s: asked %d times, %v, want asked: %t", what, registry.asked.Load()-before, err, want)
		}
		before = registry.asked.Load()
	}
	_, err := s.Prepare(t.Context(), ref, Never, nil)
	wantKind(t, err, fault.NotFound)
	if fault.Reason(err) != "IMAGE_NOT_PRESENT" || registry.asked.Load() != before {
		t.Errorf("never, not present: got %v, asked %d times", err, registry.asked.Load()-before)
	}
	asks("if not present, not present", IfNotPresent, true)
	asks("if not present, present", IfNotPresent, false)
	asks("never, present", Never, false)
	asks("always, present", Always, true)
	registry.code.Store(503)
	if _, err := s.Prepare(t.Context(), ref, Always, nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("always, with a registry that is down: got %v", err)
	}
}

func TestNeededBy(t *testing.T) {
	digest := godigest.FromString("x")
	record := images.Image{Name: "docker.io/library/web:1", Target: ocispec.Descriptor{Digest: digest}}
	for _, c := range []struct {
		ref  string
		want bool
	}{
		{"web:1", true},
		{"docker.io/library/web:1", true},
		{"web:2", false},
		{"web", false},
		{"reg.example/web:1", false},
		{"web@" + digest.String(), true},
		{"reg.example/other:7@" + digest.String(), true},
		{"web@" + godigest.FromString("y").String(), false},
		{"not a reference", false},
	} {
		if got := neededBy(record, []User{{Name: "a", Image: c.ref}, {Name: "a", Image: c.ref}}); (len(got) == 1) != c.want || len(got) > 1 {
			t.Errorf("%s: got %v, want needed: %t", c.ref, got, c.want)
		}
	}
}
