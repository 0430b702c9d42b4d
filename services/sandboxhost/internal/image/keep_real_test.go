package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

func bring(t *testing.T, s *Store, ref string, files ...testimage.File) Image {
	t.Helper()
	got, err := s.Import(t.Context(), bytes.NewReader(testimage.Archive(t, ref, testimage.New(t, files...))))
	if err != nil || len(got) != 1 {
		t.Fatalf("import %s: %+v, %v", ref, got, err)
	}
	return got[0]
}

func export(t *testing.T, s *Store, ref string, all bool) []byte {
	t.Helper()
	e, err := s.Export(t.Context(), ref, all)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var b bytes.Buffer
	if err := e.Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) < e.Size || e.Size == 0 {
		t.Errorf("archive has %d bytes, its parts %d", b.Len(), e.Size)
	}
	return b.Bytes()
}

func listed(t *testing.T, s *Store) map[string]Image {
	t.Helper()
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Image{}
	for _, i := range list {
		all[i.Name] = i
	}
	return all
}

// importsCompressed wants gzip taken, whole or not at all, and zstd told of by its name.
func importsCompressed(t *testing.T, s *Store, archive []byte, want Image) {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{
		"half":             packed.Bytes()[:packed.Len()/2],
		"without its sum":  packed.Bytes()[:packed.Len()-8],
		"with another sum": append(bytes.Clone(packed.Bytes()[:packed.Len()-8]), "12345678"...),
		"gzip of nothing":  {0x1f, 0x8b},
		"zstd":             {0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0},
	} {
		_, err := s.Import(t.Context(), bytes.NewReader(text))
		if fault.KindOf(err) != fault.Invalid || what == "zstd" && !strings.Contains(err.Error(), "compressed with zstd") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	got, err := s.Import(t.Context(), &packed)
	if err != nil || len(got) != 1 || got[0].Digest != want.Digest {
		t.Errorf("with gzip: got %+v, %v, want %+v", got, err, want)
	}
}

func TestStore_ExportComesBackTheSame(t *testing.T) {
	s, r := newStore(t)
	const ref = "registry.invalid/test/prog:1"
	before := bring(t, s, ref)
	archive := export(t, s, ref, false)
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{len(archive) / 2, len(archive) - 4096} {
		_, err := s.Import(t.Context(), bytes.NewReader(archive[:size]))
		wantKind(t, err, fault.Invalid)
	}
	again, err := s.Import(t.Context(), bytes.NewReader(archive))
	if err != nil || len(again) != 1 || again[0].Digest != before.Digest || again[0].Name != ref || again[0].ChainID != before.ChainID {
		t.Errorf("got %+v, %v, want %+v", again, err, before)
	}
	importsCompressed(t, s, archive, before)
	if got := export(t, s, ref, true); len(got) == 0 {
		t.Error("all platforms of an image for one: nothing")
	}
	_, err = s.Export(t.Context(), "registry.invalid/test/other:1", false)
	wantKind(t, err, fault.NotFound)
	_, err = s.Export(t.Context(), "no reference", false)
	wantKind(t, err, fault.Invalid)
	// An image whose part is lost says so before the first byte.
	c, lost := r.Client(t), content.Info{}
	err = c.ContentStore().Walk(t.Context(), func(i content.Info) error {
		if i.Size > lost.Size {
			lost = i
		}
		return nil
	})
	if err = errors.Join(err, c.ContentStore().Delete(t.Context(), lost.Digest)); err != nil {
		t.Fatal(err)
	}
	_, err = s.Export(t.Context(), ref, false)
	wantKind(t, err, fault.NotFound)
	if err == nil || !strings.Contains(err.Error(), lost.Digest.String()) {
		t.Errorf("a lost part: got %v", err)
	}
}

func TestStore_ExportsOnePlatformOfMany(t *testing.T) {
	s, _ := newStore(t)
	img := testimage.New(t)
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	other := config.DeepCopy()
	other.Architecture = "riscv64"
	foreign, err := mutate.ConfigFile(img, other)
	if err != nil {
		t.Fatal(err)
	}
	ref := testimage.Serve(t) + "/test/many:1"
	testimage.PushIndex(t, ref, mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "riscv64"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}}}))
	pulled, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	archive := export(t, s, ref, false)
	_, err = s.Export(t.Context(), ref, true)
	wantKind(t, err, fault.NotFound)
	if err == nil || !strings.Contains(err.Error(), "--all-platforms") {
		t.Errorf("all platforms, of which one is here: got %v", err)
	}
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	again, err := s.Import(t.Context(), bytes.NewReader(archive))
	if err != nil || len(again) != 1 || again[0].Digest != pulled.Digest {
		t.Errorf("got %+v, %v, want digest %s", again, err, pulled.Digest)
	}
}

func TestStore_AnExportKeepsItsImage(t *testing.T) {
	s, _ := newStore(t)
	const ref = "registry.invalid/test/prog:1"
	bring(t, s, ref)
	e, err := s.Export(t.Context(), ref, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Remove(t.Context(), ref, nil, time.Now())
	wantKind(t, err, fault.Conflict)
	broken := errors.New("reader went away")
	if err := e.Write(t.Context(), failing{broken}); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: got %v", err)
	}
	e.Close()
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestStore_APinOutlivesPullImportAndRuntime(t *testing.T) {
	s, r := newStore(t)
	ref := testimage.Serve(t) + "/test/prog:1"
	img := testimage.New(t)
	testimage.Push(t, ref, img)
	_, err := s.Pin(t.Context(), ref)
	wantKind(t, err, fault.NotFound)
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // repeating is safe
		if name, err := s.Pin(t.Context(), ref); err != nil || name != ref {
			t.Fatalf("pin: %s, %v", name, err)
		}
	}
	holds := func(when string) {
		t.Helper()
		if !listed(t, s)[ref].Pinned {
			t.Errorf("%s: not pinned", when)
		}
		_, err := s.Remove(t.Context(), ref, nil, time.Now())
		wantKind(t, err, fault.Conflict)
		if fault.Reason(err) != "IMAGE_PINNED" {
			t.Errorf("%s: removal got %v", when, err)
		}
		gone, _, err := s.Prune(t.Context(), nobody, Prune{All: true})
		// What the tag meant before is kept under its digest, and is not pinned.
		if err != nil || slices.ContainsFunc(gone, func(g Image) bool { return g.Name == ref }) {
			t.Errorf("%s: pruned %+v, %v", when, gone, err)
		}
	}
	holds("at once")
	testimage.Push(t, ref, testimage.New(t, testimage.File{Name: "/new", Mode: 0o644}))
	if _, err := s.Pull(t.Context(), ref, nil); err != nil { // the tag has moved
		t.Fatal(err)
	}
	holds("after a pull")
	if _, err := s.Import(t.Context(), bytes.NewReader(testimage.Archive(t, ref, img))); err != nil {
		t.Fatal(err)
	}
	holds("after an import")
	if listed(t, s)[ref].Imported.IsZero() {
		t.Error("not imported after an import")
	}
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if !listed(t, s)[ref].Imported.IsZero() {
		t.Error("still imported after a pull: a registry has it")
	}
	r.Kill(t)
	r.Up(t)
	holds("after the death of the runtime")
	if _, err := s.Unpin(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Error(err)
	}
}

func nobody() ([]User, error) { return nil, nil }

func TestStore_PrunesAndSaysHowMuch(t *testing.T) {
	s, r := newStore(t)
	registry := testimage.Serve(t)
	old, twin, needed := registry+"/test/old:1", registry+"/test/twin:1", registry+"/test/needed:1"
	large := testimage.File{Name: "/large", Mode: 0o644, Data: bytes.Repeat([]byte("x"), 3<<20)}
	for ref, img := range map[string]v1.Image{old: testimage.New(t, large), twin: testimage.New(t, large), needed: testimage.New(t)} {
		testimage.Push(t, ref, img)
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	const brought = "registry.invalid/test/brought:1"
	bring(t, s, brought, testimage.File{Name: "/brought", Mode: 0o644})
	users := func() ([]User, error) { return []User{{Name: "sandbox web", Image: needed}}, nil }
	names := func(got []Image) string {
		var all []string
		for _, i := range got {
			all = append(all, strings.TrimPrefix(i.Name, registry))
		}
		return strings.Join(all, " ")
	}
	if got, _, err := s.Prune(t.Context(), users, Prune{MinAge: time.Hour}); err != nil || len(got) != 0 {
		t.Errorf("young ones: got %s, %v", names(got), err)
	}
	dry, would, err := s.Prune(t.Context(), users, Prune{DryRun: true})
	if err != nil || names(dry) != "/test/old:1 /test/twin:1" || would < 3<<20 || would > 30<<20 {
		t.Errorf("dry run: got %s, %d bytes, %v", names(dry), would, err)
	}
	if all := listed(t, s); len(all) != 4 {
		t.Errorf("a dry run removed: %d are left", len(all))
	}
	got, freed, err := s.Prune(t.Context(), users, Prune{})
	if err != nil || names(got) != names(dry) || freed != would {
		t.Errorf("got %s, %d bytes, %v; the dry run said %s, %d", names(got), freed, err, names(dry), would)
	}
	if got, _, err := s.Prune(t.Context(), users, Prune{All: true}); err != nil || names(got) != brought {
		t.Errorf("all: got %s, %v", names(got), err)
	}
	if all := listed(t, s); len(all) != 1 || all[needed].Name == "" {
		t.Errorf("left: %+v", all)
	}
	err = r.Client(t).ContentStore().Walk(t.Context(), func(i content.Info) error {
		if i.Size > 20<<20 {
			t.Errorf("kept part %s of %d bytes", i.Digest, i.Size)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	_, _, err = s.Prune(t.Context(), func() ([]User, error) { return nil, fault.New(fault.Unavailable, "not adopted") }, Prune{All: true})
	wantKind(t, err, fault.Unavailable)
	if all := listed(t, s); len(all) != 1 {
		t.Error("a question that failed was taken for an answer")
	}
}

// sweeper has the images of s cleaned by rules under which the disk is always full.
func sweeper(s *Store, users *[]User, rules Rules) *Sweeper {
	rules.HighPercent, rules.MinFree = 100, 1<<60
	return NewSweeper(s, rules, SweeperDeps{Users: func() ([]User, error) { return *users, nil }})
}

func TestSweeper_TakesOnlyWhatNothingNeeds(t *testing.T) {
	s, r := newStore(t)
	registry := testimage.Serve(t)
	free, used, byDigest, held := registry+"/test/free:1", registry+"/test/used:1", registry+"/test/digest:1", registry+"/test/held:1"
	for i, ref := range []string{free, used, byDigest, held} {
		testimage.Push(t, ref, testimage.New(t, testimage.File{Name: "/n", Mode: 0o644, Data: []byte{byte(i)}}))
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	const brought = "registry.invalid/test/brought:1"
	bring(t, s, brought, testimage.File{Name: "/brought", Mode: 0o644})
	if _, err := s.Pin(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	users := []User{{Name: "sandbox a", Image: used}, {Name: "sandbox b", Image: "elsewhere.invalid/x@" + listed(t, s)[byDigest].Digest.String()}}
	left := func(w *Sweeper, want ...string) {
		t.Helper()
		if err := w.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := listed(t, s)
		for _, name := range want {
			if all[name].Name == "" {
				t.Errorf("%s is gone", name)
			}
			delete(all, name)
		}
		for name := range all {
			t.Errorf("%s is left", name)
		}
	}
	left(sweeper(s, &users, Rules{MinAge: time.Hour, ImportGrace: time.Hour}), free, used, byDigest, held, brought)
	w := sweeper(s, &users, Rules{ImportGrace: time.Hour})
	left(w, used, byDigest, held, brought)
	if note := noted(t, r.Client(t).ImageService(), used); note != nowValue {
		t.Errorf("used: noted %q", note)
	}
	users = users[1:] // one is removed, and then all of ours dies and comes back
	r.Kill(t)
	r.Up(t)
	before := time.Now()
	again := New(s.cfg, s.deps)
	w = sweeper(again, &users, Rules{MinAge: time.Hour})
	left(w, used, byDigest, held, brought)
	if last := listed(t, again)[used].LastUsed; last.Before(before.Add(-time.Second)) {
		t.Errorf("last use is %s, the sandbox was there until %s", last, before)
	}
	if note := noted(t, r.Client(t).ImageService(), used); note == nowValue || note == "" {
		t.Errorf("no longer used: noted %q", note)
	}
	left(sweeper(again, &users, Rules{}), byDigest, held)
}

func noted(t *testing.T, store images.Store, name string) string {
	t.Helper()
	record, err := store.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return record.Labels[usedLabel]
}

func TestSweeper_RemovesNothingWithoutAnAnswer(t *testing.T) {
	s, _ := newStore(t)
	const ref = "registry.invalid/test/prog:1"
	bring(t, s, ref)
	w := NewSweeper(s, Rules{MinFree: 1 << 60}, SweeperDeps{Users: func() ([]User, error) { return nil, fault.New(fault.Unavailable, "not adopted") }})
	wantKind(t, w.sweep(t.Context()), fault.Unavailable)
	if len(listed(t, s)) != 1 {
		t.Error("removed")
	}
}

// A disk that is nearly full takes no more images, after what can be removed was; and
// nothing is asked of a registry.
func TestStore_MakesRoomOrRefuses(t *testing.T) {
	s, _ := newStore(t)
	const first = "registry.invalid/test/first:1"
	bring(t, s, first)
	users := []User{{Name: "sandbox web", Image: first}}
	w := sweeper(s, &users, Rules{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, func() {}) }()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended: %v", err)
		}
	}()
	_, err := s.Import(t.Context(), io.LimitReader(bytes.NewReader(nil), 0))
	wantKind(t, err, fault.Exhausted)
	if fault.Reason(err) != "DISK_FULL" || !strings.Contains(err.Error(), "free on the filesystem of") || !strings.Contains(err.Error(), "images.gc.min_free") {
		t.Errorf("import: got %v", err)
	}
	if len(listed(t, s)) != 1 {
		t.Error("an image in use was removed")
	}
}
