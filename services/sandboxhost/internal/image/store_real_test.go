package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	godigest "github.com/opencontainers/go-digest"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// pullLimit is within which a missing image must be told of.
const pullLimit = 15 * time.Second

func newStore(t *testing.T) (*Store, *testruntime.Runtime) {
	t.Helper()
	r := testruntime.Start(t)
	c := r.Client(t)
	return New(Config{Snapshotter: "overlayfs"}, Deps{
		Client: func() (*containerd.Client, error) { return c, nil },
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}), r
}

// counted is a registry on loopback that counts what it is asked, and can be
// told how to answer.
type counted struct {
	host  string
	blobs sync.Map // path of a blob -> *atomic.Int32
	asked atomic.Int32
	code  atomic.Int32 // answer with this, if not 0
	delay atomic.Int64 // of each blob
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	behind, err := url.Parse("http://" + testimage.Serve(t))
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.asked.Add(1)
		if code := c.code.Load(); code != 0 {
			w.WriteHeader(int(code))
			return
		}
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			n, _ := c.blobs.LoadOrStore(req.URL.Path, new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
			select { // a slow registry; the client may go away meanwhile
			case <-time.After(time.Duration(c.delay.Load())):
			case <-req.Context().Done():
			}
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	c.host = strings.TrimPrefix(s.URL, "http://")
	return c
}

func wantKind(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v of kind %v, want %v", err, fault.KindOf(err), kind)
	}
}

func TestStore_PresentImageNeedsNoNetwork(t *testing.T) {
	s, r := newStore(t)
	img := testimage.New(t)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	const repository = "registry.invalid/test/prog"
	imported, err := s.Import(t.Context(), bytes.NewReader(testimage.Archive(t, repository+":1", img)))
	if err != nil || len(imported) != 1 || imported[0].Name != repository+":1" {
		t.Fatalf("import: got %+v, %v", imported, err)
	}
	target := imported[0].Digest.String()
	refs := []string{repository + ":1", repository + ":1@" + target, repository + "@" + target}
	for range 2 {
		for _, ref := range refs {
			got, err := s.Ensure(t.Context(), ref, nil)
			if err != nil || got.ChainID == "" || !slices.Equal(got.Config.Entrypoint, []string{testimage.Program}) {
				t.Errorf("%s (image %s): got %+v, %v", ref, digest, got, err)
			}
		}
		r.Kill(t)
		r.Up(t)
		s.known = map[godigest.Digest]Image{}
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Size == 0 || list[0].CreatedAt.IsZero() {
		t.Errorf("list: got %+v, %v", list, err)
	}
}

func TestStore_RefusesCutArchive(t *testing.T) {
	s, r := newStore(t)
	whole := testimage.Archive(t, "registry.invalid/test/prog:1", testimage.New(t))
	for _, size := range []int{0, 100, 5_000, len(whole) / 2, len(whole) - 4096} {
		_, err := s.Import(t.Context(), bytes.NewReader(whole[:size]))
		wantKind(t, err, fault.Invalid)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("kept: %+v, %v", list, err)
	}
	blobs := 0
	ctx, cancel := context.WithTimeout(t.Context(), pullLimit)
	defer cancel()
	if err := r.Client(t).ContentStore().Walk(ctx, func(content.Info) error { blobs++; return nil }); err != nil || blobs != 0 {
		t.Errorf("%d blobs kept, %v", blobs, err)
	}
}

func TestStore_PullsOnceForAll(t *testing.T) {
	s, _ := newStore(t)
	registry := newCounted(t)
	ref := registry.host + "/test/prog:1"
	testimage.Push(t, ref, testimage.New(t))
	registry.delay.Store(int64(300 * time.Millisecond))
	var wg sync.WaitGroup
	first, leave := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := s.Ensure(first, ref, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	})
	errs := make(chan error, 30)
	for range cap(errs) {
		wg.Go(func() {
			_, err := s.Ensure(t.Context(), ref, nil)
			errs <- err
		})
	}
	time.AfterFunc(100*time.Millisecond, leave)
	wg.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	registry.blobs.Range(func(path, n any) bool {
		if got := n.(*atomic.Int32).Load(); got > 2 {
			t.Errorf("%s was fetched %d times", path, got)
		}
		return true
	})
	before := registry.asked.Load()
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil || registry.asked.Load() != before {
		t.Errorf("a present image asked the registry %d times, %v", registry.asked.Load()-before, err)
	}
	if _, err := s.Pull(t.Context(), ref, nil); err != nil || registry.asked.Load() == before {
		t.Errorf("a refresh asked the registry %d times, %v", registry.asked.Load()-before, err)
	}
}

func TestStore_SaysWhatIsWrong(t *testing.T) {
	s, _ := newStore(t)
	registry := newCounted(t)
	ref := registry.host + "/test/prog:1"
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.NotFound)
	for code, kind := range map[int]fault.Kind{
		http.StatusUnauthorized: fault.Denied, http.StatusForbidden: fault.Denied,
		http.StatusInternalServerError: fault.Unavailable, http.StatusTooManyRequests: fault.Unavailable,
	} {
		registry.code.Store(int32(code))
		_, err := s.Ensure(t.Context(), ref, nil)
		if !errors.Is(err, kind) {
			t.Errorf("code %d: got %v of kind %v, want %v", code, err, fault.KindOf(err), kind)
		}
	}
	_, err = s.Ensure(t.Context(), "not a reference", nil)
	wantKind(t, err, fault.Invalid)
}

func TestStore_SaysUnreachableInTime(t *testing.T) {
	s, _ := newStore(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := l.Addr().String() // takes connections and says nothing
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, host := range []string{silent, "127.0.0.1:1", "registry.invalid"} {
		began := time.Now()
		_, err := s.Ensure(t.Context(), host+"/test/prog:1", nil)
		wantKind(t, err, fault.Unavailable)
		if took := time.Since(began); took > pullLimit {
			t.Errorf("%s: took %s", host, took)
		}
		if err == nil || !strings.Contains(err.Error(), "not present and registry unreachable") {
			t.Errorf("%s: got %v", host, err)
		}
	}
}

func TestStore_PlainHTTPOnlyWhereAllowed(t *testing.T) {
	s := New(Config{PlainHTTP: []string{"reg.example", "10.0.0.1:5000"}}, Deps{})
	for host, want := range map[string]bool{
		"127.0.0.1:5000": true, "localhost": true, "[::1]:80": true, "reg.example": true, "reg.example:443": true,
		"10.0.0.1:5000": true, "10.0.0.1": false, "docker.io": false, "localhost.example": false,
	} {
		if got, err := s.plain(host); err != nil || got != want {
			t.Errorf("%s: got %t, %v, want %t", host, got, err, want)
		}
	}
}

func TestPageOf(t *testing.T) {
	var all []Image
	for i := range 25 {
		all = append(all, Image{Name: fmt.Sprintf("image-%02d", i)})
	}
	var got []Image
	for token := ""; ; {
		page, next := pageOf(all, token, 10)
		got = append(got, page...)
		if next == "" {
			break
		}
		token = next
	}
	if len(got) != len(all) || got[24].Name != all[24].Name {
		t.Errorf("got %d images in pages, want %d", len(got), len(all))
	}
}
