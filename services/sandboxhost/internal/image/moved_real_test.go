package image

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// What a tag meant is there as long as it is needed, though the tag means another image
// and the registry is gone. (IMG-5)
func TestStore_KeepsWhatATagMeant(t *testing.T) {
	d := open(t, nil)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	s := newConfigured(t, nil)
	old, err := s.Ensure(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.push(t, "test/prog:1", withLayers(t, 1000))
	young, err := s.Pull(t.Context(), ref, nil)
	if err != nil || young.Digest == old.Digest {
		t.Fatalf("got %+v, %v", young, err)
	}
	d.rules(nil)
	collect(t, s.runtime.Client(t).LeasesService())
	again := New(s.cfg, s.deps) // which knows nothing by heart
	for _, want := range []Image{old, young} {
		pinned := Pinned(ref, want.Digest.String())
		got, err := again.Prepare(t.Context(), pinned, IfNotPresent, nil)
		if err != nil || got.Digest != want.Digest || got.ChainID != want.ChainID {
			t.Errorf("%s: got %+v, %v", pinned, got, err)
		}
	}
	if got := d.requests(every); len(got) != 0 {
		t.Errorf("the registry was asked %v", got)
	}
	if _, err := again.Remove(t.Context(), Pinned(ref, old.Digest.String()), nil, time.Now()); err != nil {
		t.Error(err)
	}
}

// collect has the runtime remove what nothing needs, now.
func collect(t *testing.T, manager leases.Manager) {
	t.Helper()
	lease, err := manager.Create(t.Context(), leases.WithRandomID()) // the end of one does it
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Delete(t.Context(), lease, leases.SynchronousDelete); err != nil {
		t.Fatal(err)
	}
}

func TestPinned(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for ref, want := range map[string]string{
		"web:1": "docker.io/library/web@" + digest, "reg:5000/a/b": "reg:5000/a/b@" + digest,
		"reg:5000/a/b:1@sha256:" + strings.Repeat("b", 64): "reg:5000/a/b@" + digest, "not a reference": "not a reference",
	} {
		if got := Pinned(ref, digest); got != want {
			t.Errorf("%s: got %s, want %s", ref, got, want)
		}
	}
	if got := Pinned("web:1", ""); got != "web:1" {
		t.Errorf("without a digest: got %s", got)
	}
}

// loginPage is what some networks answer with whatever is asked for.
func loginPage(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !strings.Contains(r.URL.Path, "/manifests/") {
		next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	_, _ = io.WriteString(w, "<html>Log in to this network first.</html>") // the pull says what came
}

// A pull that cannot succeed leaves a name as it was: with the image that it meant, or
// with none. (IMG-5)
func TestStore_IMG5_PullThatFailsMovesNoTag(t *testing.T) {
	d := open(t, nil)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	s := newConfigured(t, nil)
	old, err := s.Ensure(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := testimage.New(t).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.Architecture = "s390x"
	foreign, err := mutate.ConfigFile(testimage.New(t), config)
	if err != nil {
		t.Fatal(err)
	}
	other := d.push(t, "test/other:1", foreign)
	d.push(t, "test/prog:1", foreign)
	for what, rule := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){"an image of another platform": nil, "a page": loginPage} {
		d.rules(rule)
		for _, name := range []string{ref, other} {
			_, err := s.Pull(t.Context(), name, nil)
			wantKind(t, err, fault.NotFound)
			if said := strings.Contains(err.Error(), `answered with "text/html", which is no image`); said != (rule != nil) {
				t.Errorf("%s: got %v", what, err)
			}
		}
		again := New(s.cfg, s.deps) // which knows nothing by heart
		got, err := again.Find(t.Context(), ref)
		if err != nil || got.Digest != old.Digest || got.ChainID != old.ChainID {
			t.Errorf("%s: got %+v, %v, want the image from before", what, got, err)
		}
		if all := listed(t, s.Store); len(all) != 1 {
			t.Errorf("%s: got images %v, want the one from before", what, slices.Collect(maps.Keys(all)))
		}
	}
}

// What a tag meant stays also when an archive gives it another image. (IMG-5)
func TestStore_IMG5_ImportKeepsWhatATagMeant(t *testing.T) {
	s, r := newStore(t)
	const ref = "registry.invalid/test/prog:1"
	old := bring(t, s, ref)
	young := bring(t, s, ref, testimage.File{Name: "/etc/young", Data: []byte("young")})
	if young.Digest == old.Digest {
		t.Fatal("both archives hold the same image")
	}
	collect(t, r.Client(t).LeasesService())
	again := New(s.cfg, s.deps) // which knows nothing by heart
	for _, want := range []Image{old, young} {
		pinned := Pinned(ref, want.Digest.String())
		got, err := again.Prepare(t.Context(), pinned, Never, nil)
		if err != nil || got.Digest != want.Digest || got.ChainID != want.ChainID {
			t.Errorf("%s: got %+v, %v", pinned, got, err)
		}
	}
	if got, err := again.Find(t.Context(), ref); err != nil || got.Digest != young.Digest {
		t.Errorf("the tag: got %+v, %v", got, err)
	}
	bring(t, s, ref, testimage.File{Name: "/etc/young", Data: []byte("young")})
	if all := listed(t, s); len(all) != 2 {
		t.Errorf("after the same import again: got %v, want the two from before", slices.Collect(maps.Keys(all)))
	}
}
