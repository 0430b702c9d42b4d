package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// mood is what an unsteady registry does to one answer.
type mood int

const (
	steady  mood = iota
	cut          // in the middle
	flipped      // one byte is another
	stalled      // nothing more comes
	refused      // 500
	moods
)

// unsteady is a rule: of three answers about one is as it should be. The same seed gives
// the same moods in the order of the requests.
func unsteady(seed uint64) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // chance, no secret
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		raw := bytes.Clone(whole.Body.Bytes())
		mu.Lock()
		how, at := mood(random.IntN(int(moods)+1)), random.IntN(max(len(raw), 1))
		mu.Unlock()
		if how == refused {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if how == flipped && len(raw) > 0 {
			raw[at] ^= 1
		}
		for name, values := range whole.Header() {
			w.Header()[name] = values
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
		w.WriteHeader(whole.Code)
		if how != cut && how != stalled {
			_, _ = w.Write(raw) // the client may be gone
			return
		}
		_, _ = w.Write(raw[:at])
		_ = http.NewResponseController(w).Flush()
		if how == stalled {
			<-r.Context().Done() // until we are left
		}
		panic(http.ErrAbortHandler)
	}
}

// holds checks what one file of an unpacked image holds.
func (s *configured) holds(t *testing.T, img Image, path string, want []byte) {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), testruntime.Namespace)
	c := s.runtime.Client(t)
	ctx, done, err := c.WithLease(ctx) // or what looks goes with the garbage of another pull
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = done(ctx) }() // ends by itself
	snapshots := c.SnapshotService("overlayfs")
	key := "look-" + img.ChainID
	mounts, err := snapshots.View(ctx, key, img.ChainID)
	if err != nil {
		t.Fatal(err)
	}
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err == nil && sha256.Sum256(got) != sha256.Sum256(want) {
			t.Errorf("%s of %s holds %d other bytes", path, img.Name, len(got))
		}
		return err
	})
	if err != nil {
		t.Errorf("look into %s: %v", img.Name, err)
	}
	if err := snapshots.Remove(ctx, key); err != nil {
		t.Error(err)
	}
}

// Twenty images come through a registry that cuts, flips, stalls and refuses at random;
// what comes of it is right or nothing, no try hangs, and once the registry is steady
// each image is there at the third try at last.
func TestStore_IMG6_NothingBrokenIsKept(t *testing.T) {
	const count, stall = 20, time.Second
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // chance, no secret
	d := open(t, nil)
	s := newConfigured(t, func(c *Config) { c.StallTimeout, c.MaxPulls = stall, 10 })
	base := testimage.New(t)
	refs, files := make([]string, count), make([][]byte, count)
	for i := range refs {
		files[i] = make([]byte, 64<<10)
		for at := range files[i] {
			files[i][at] = byte(random.Uint32()) // nothing that can be compressed
		}
		refs[i] = d.push(t, fmt.Sprintf("test/prog-%d:1", i), testimage.With(t, base, testimage.File{Name: "/data", Mode: 0o644, Data: files[i]}))
	}
	d.rules(unsteady(seed))
	good := make([]bool, count)
	try := func(i int) {
		// A pull of four parts, each from its beginning or on from where it was, leaves a
		// registry that stands still after the stall time-out of each.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		img, err := s.Ensure(ctx, refs[i], nil)
		if ctx.Err() != nil {
			t.Errorf("%s: a try has no end", refs[i])
		}
		if err == nil {
			good[i] = true
			s.holds(t, img, "data", files[i])
		} else if kind := fault.KindOf(err); kind != fault.Unavailable {
			t.Errorf("%s: got %v of kind %v", refs[i], err, kind)
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		for i := range refs {
			wg.Go(func() { try(i) })
		}
		wg.Wait()
	}
	d.rules(nil)
	unlucky := 0
	for i := range refs {
		if !good[i] {
			unlucky++
		}
		for range 3 {
			if !good[i] {
				try(i)
			}
		}
		if !good[i] {
			t.Errorf("%s is not there after three tries at a steady registry", refs[i])
		}
	}
	t.Logf("%d of %d came only once the registry was steady", unlucky, count)
	if _, cut, _ := left(t, s); cut != 0 {
		t.Errorf("%d cut parts are left", cut)
	}
}
