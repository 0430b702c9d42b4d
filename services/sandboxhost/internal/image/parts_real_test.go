package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// left counts what the runtime keeps: parts, cut ones, and unpacked layers.
func left(t *testing.T, s *configured) (blobs, cut, layers int) {
	t.Helper()
	c := s.runtime.Client(t)
	if err := c.ContentStore().Walk(t.Context(), func(content.Info) error { blobs++; return nil }); err != nil {
		t.Fatal(err)
	}
	statuses, err := c.ContentStore().ListStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), testruntime.Namespace)
	err = c.SnapshotService("overlayfs").Walk(ctx, func(context.Context, snapshots.Info) error { layers++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return blobs, len(statuses), layers
}

func wantNothingLeft(t *testing.T, s *configured) {
	t.Helper()
	if blobs, cut, layers := left(t, s); blobs != 0 || cut != 0 || layers != 0 {
		t.Errorf("left: %d parts, %d cut ones, %d unpacked layers", blobs, cut, layers)
	}
}

// dyingAt is a rule: the registry sends so many bytes of one part, and nothing more of it.
func dyingAt(layer v1.Hash, n int) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	dead := new(atomic.Bool)
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasSuffix(r.URL.Path, layer.String()) {
			next.ServeHTTP(w, r)
			return
		}
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		dead.Store(true)
		cutAfter(w, r, next, n)
	}
}

// A pull that is cut, by the registry, by our death, and by that of the runtime, goes
// on with the bytes that there are.
func TestStore_GoesOnWhereItWasCut(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 8<<20)
	layer, size := lastLayer(t, img)
	ref := d.push(t, "test/prog:1", img)
	s := newConfigured(t, nil)
	d.rules(dyingAt(layer, 5<<20))
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "layer "+layer.String(), d.host)
	s.runtime.Kill(t)
	s.runtime.Up(t)
	again := New(s.cfg, s.deps)
	d.rules(nil)
	if _, err := again.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	var sent int64
	for _, a := range d.requests(forBlob(layer)) {
		sent += a.sent
		if a.ranged == "" {
			t.Errorf("%s was asked for from its beginning", a.path)
		}
	}
	if sent == 0 || sent > size-4<<20 {
		t.Errorf("%d bytes of %d were sent again, want about %d", sent, size, size-5<<20)
	}
	if all, err := s.runtime.Client(t).LeasesService().List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("leases left: %v, %v", all, err)
	}
}

// What nobody goes on with is removed after its time, and not before.
func TestStore_ForgetsCutPartsInTime(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 4<<20)
	layer, _ := lastLayer(t, img)
	ref := d.push(t, "test/prog:1", img)
	s := newConfigured(t, nil)
	d.rules(dyingAt(layer, 1<<20))
	if _, err := s.Ensure(t.Context(), ref, nil); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	next, err := s.sweepParts(t.Context(), time.Now().Add(keepParts-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if in := time.Until(next); in < keepParts-time.Minute || in > keepParts {
		t.Errorf("they are kept for %v more, want %v", in, keepParts)
	}
	if _, cut, _ := left(t, s); cut != 1 {
		t.Errorf("before its time: %d cut parts, want 1", cut)
	}
	if next, err := s.sweepParts(t.Context(), time.Now().Add(keepParts+time.Minute)); err != nil || !next.IsZero() {
		t.Fatalf("got %v, %v", next, err)
	}
	wantNothingLeft(t, s)
}

// What a pull of an earlier life left whose time is over goes at the start, and what has
// some time left goes when it is over, though nobody pulls anything.
func TestSweeper_RemovesCutPartsWithoutAPull(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 4<<20)
	layer, _ := lastLayer(t, img)
	s := newConfigured(t, nil)
	d.rules(dyingAt(layer, 1<<20))
	if _, err := s.Ensure(t.Context(), d.push(t, "test/prog:1", img), nil); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("got %v", err)
	}
	manager := s.runtime.Client(t).LeasesService()
	all, err := manager.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("leases: %v, %v", all, err)
	}
	for what, end := range map[string]time.Time{"at the start": time.Now().Add(-time.Minute), "in time": time.Now().Add(3 * time.Second)} {
		again := New(s.cfg, s.deps)
		lease, err := again.hold(t.Context(), s.runtime.Client(t), d.host+"/test/prog:1") // takes over what is left
		if err != nil {
			t.Fatal(err)
		}
		short, err := manager.Create(t.Context(), leases.WithRandomID(), leases.WithLabel(pullLabel, "x"), leases.WithLabel(expireLabel, end.UTC().Format(time.RFC3339)))
		if err != nil {
			t.Fatal(err)
		}
		if err := takeOver(t.Context(), manager, lease, short); err != nil {
			t.Fatal(err)
		}
		w := NewSweeper(again, Rules{}, SweeperDeps{Users: func() ([]User, error) { return nil, fault.New(fault.Unavailable, "not adopted") }})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx, func() {}) }()
		limit := time.Now().Add(20 * time.Second)
		for {
			all, err := manager.List(t.Context())
			if err == nil && len(all) == 0 {
				break
			}
			if time.Now().After(limit) {
				t.Errorf("%s: leases left: %v, %v", what, all, err)
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-t.Context().Done():
			}
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: ended: %v", what, err)
		}
	}
	wantNothingLeft(t, s)
}

// A registry that stands still in the middle of a part is left, and the part fetched
// on from there.
func TestStore_LeavesARegistryThatStandsStill(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 4<<20)
	layer, _ := lastLayer(t, img)
	ref := d.push(t, "test/prog:1", img)
	s := newConfigured(t, func(c *Config) { c.StallTimeout = 5 * time.Second })
	d.rules(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, layer.String()) && r.Method == http.MethodGet && r.Header.Get("Range") == "" {
			whole := httptest.NewRecorder()
			next.ServeHTTP(whole, r)
			w.Header().Set("Content-Length", whole.Header().Get("Content-Length"))
			_, _ = w.Write(whole.Body.Bytes()[:1<<20])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // until we are left
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.requests(forBlob(layer)); len(got) < 2 || got[len(got)-1].ranged == "" {
		t.Errorf("got %+v, want a second request that goes on", got)
	}
}

// A part that is not what its digest says is named with its host and is gone. (IMG-6)
func TestStore_RefusesAFlippedByte(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 1<<20)
	layer, _ := lastLayer(t, img)
	ref := d.push(t, "test/prog:1", img)
	s := newConfigured(t, nil)
	d.rules(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasSuffix(r.URL.Path, layer.String()) {
			next.ServeHTTP(w, r)
			return
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		raw := whole.Body.Bytes()
		raw[len(raw)/2] ^= 1
		_, _ = w.Write(raw)
	})
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "layer "+layer.String(), d.host, "not what the digest says")
	if fault.Reason(err) != "IMAGE_PART_BROKEN" {
		t.Errorf("got reason %s", fault.Reason(err))
	}
	if _, cut, _ := left(t, s); cut != 0 {
		t.Errorf("%d cut parts are kept, of which one is broken", cut)
	}
	d.rules(nil)
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Errorf("from a registry that is whole again: %v", err)
	}
}

// A layer that is what its digest says, and no archive, ends the pull for good.
func TestStore_SaysThatALayerIsNoArchive(t *testing.T) {
	d := open(t, nil)
	for what, raw := range map[string][]byte{
		"text":     []byte(strings.Repeat("this is no archive ", 100)),
		"cut gzip": cutGzip(t),
	} {
		img, err := mutate.AppendLayers(testimage.New(t), static.NewLayer(raw, types.DockerLayer))
		if err != nil {
			t.Fatal(err)
		}
		ref := d.push(t, "test/"+strings.ReplaceAll(what, " ", "-")+":1", img)
		s := newConfigured(t, nil)
		_, err = s.Ensure(t.Context(), ref, nil)
		wantKind(t, err, fault.Invalid)
		layer, _ := lastLayer(t, img)
		wantText(t, err, layer.String(), "broken")
		wantNothingLeft(t, s)
	}
}

// cutGzip is the first half of a layer.
func cutGzip(t *testing.T) []byte {
	t.Helper()
	layers, err := withLayers(t, 100_000).Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[len(layers)-1].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(raw[:len(raw)/2])
}

func TestStore_SaysWhichPlatformsThereAre(t *testing.T) {
	d := open(t, nil)
	other := "s390x"
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: testimage.New(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}}},
		mutate.IndexAddendum{Add: testimage.New(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "windows", Architecture: runtime.GOARCH}}},
		mutate.IndexAddendum{Add: testimage.New(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
	)
	tag, err := name.ParseReference(d.behind+"/test/prog:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	s := newConfigured(t, nil)
	_, err = s.Ensure(t.Context(), d.host+"/test/prog:1", nil)
	wantKind(t, err, fault.NotFound)
	wantText(t, err, "linux/"+other+", windows/"+runtime.GOARCH, "this node runs linux/"+runtime.GOARCH)
	if strings.Contains(err.Error(), "unknown") || fault.Reason(err) != "IMAGE_OTHER_PLATFORM" {
		t.Errorf("got %v with reason %s", err, fault.Reason(err))
	}
	wantNothingLeft(t, s)
}

func TestStore_FetchesAFewAtOnce(t *testing.T) {
	d := open(t, nil)
	img := withLayers(t, 100_000, 100_001, 100_002, 100_003, 100_004, 100_005)
	first, second := d.push(t, "test/first:1", img), d.push(t, "test/second:1", withLayers(t, 100_000))
	s := newConfigured(t, func(c *Config) { c.MaxPulls, c.MaxLayers, c.StallTimeout = 1, 2, time.Minute })
	goOn := make(chan struct{})
	d.rules(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if blob(r) {
			select {
			case <-goOn:
			case <-r.Context().Done():
			}
		}
		next.ServeHTTP(w, r)
	})
	done := make(chan error, 2)
	going, waits := make(chan struct{}), make(chan State, 1)
	go func() {
		var once atomic.Bool
		_, err := s.Ensure(t.Context(), first, func(State) {
			if once.CompareAndSwap(false, true) {
				close(going)
			}
		})
		done <- err
	}()
	<-going
	go func() {
		_, err := s.Ensure(t.Context(), second, func(at State) {
			select {
			case waits <- at:
			default:
			}
		})
		done <- err
	}()
	at := <-waits
	if at.Turn != 1 || at.AtOnce != 1 || !strings.Contains(Sentence(second, at), "waiting to begin pulling "+second+": number 1") {
		t.Errorf("the second pull: got %+v: %s", at, Sentence(second, at))
	}
	if got := d.requests(func(a asked) bool { return strings.Contains(a.path, "/second/") }); len(got) != 0 {
		t.Errorf("the second pull asked %v before its turn", got)
	}
	close(goOn)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if d.most > 2 {
		t.Errorf("%d parts were fetched at once, want 2 at most", d.most)
	}
}
