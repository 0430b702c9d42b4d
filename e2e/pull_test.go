package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"staddle.internal/e2e/bed"
	"staddle.internal/e2e/image"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// probeImage is the workload's image, not yet in an archive.
func probeImage(t *testing.T) v1.Image {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	if err := image.Build("cmd/probe", program); err != nil {
		t.Fatal(err)
	}
	img, err := image.FromProgram(program)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// larger adds a layer of one file of so many random bytes to an image. It is not
// compressed: that takes minutes with the race detector.
func larger(t *testing.T, img v1.Image, size int64) v1.Image {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return withFiles(t, img, map[string][]byte{"large": data})
}

// withFiles adds a layer of files to an image.
func withFiles(t *testing.T, img v1.Image, files map[string][]byte) v1.Image {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for name, data := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(img, static.NewLayer(raw.Bytes(), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// serveOn starts a registry in the bed's network.
func serveOn(t *testing.T, l net.Listener, wrap func(http.Handler) http.Handler) *image.Registry {
	t.Helper()
	r := image.Serve(l, wrap)
	t.Cleanup(r.Close)
	return r
}

func push(t *testing.T, r *image.Registry, img v1.Image, repository string) string {
	t.Helper()
	ref, err := r.Push(img, repository)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// slow is a registry that begins to answer questions for parts of images, and
// goes on when it is let.
type slow struct {
	goOn chan struct{} // closed when it is let

	mu   sync.Mutex
	gets map[string]int // by path
}

func newSlow() *slow { return &slow{goOn: make(chan struct{}), gets: map[string]int{}} }

func (s *slow) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			s.mu.Lock()
			s.gets[r.URL.Path]++
			s.mu.Unlock()
			w = &held{ResponseWriter: w, goOn: s.goOn, gone: r.Context().Done()}
		}
		h.ServeHTTP(w, r)
	})
}

func (s *slow) asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for path, n := range s.gets {
		all[path] = n
	}
	return all
}

// held sends the head of an answer at once and its body when it is let.
type held struct {
	http.ResponseWriter
	goOn, gone <-chan struct{}
}

// Write writes a part of the body.
func (h *held) Write(p []byte) (int, error) {
	if f, ok := h.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
	select {
	case <-h.goOn:
	case <-h.gone:
	}
	return h.ResponseWriter.Write(p)
}

// pulling says that a sandbox waits for its image.
func pulling(s *resourcev1.SandboxStatus) bool {
	return s.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_PREPARING && strings.Contains(s.GetMessage(), "pulling")
}

// TestNode_IMG2_OnePullForAll has 30 sandboxes ask for one image of 100 MB; the registry
// stands still meanwhile, so that all of them wait at once.
func TestNode_IMG2_OnePullForAll(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	registry := newSlow()
	ref := push(t, serveOn(t, b.Listen(), registry.wrap), larger(t, probeImage(t), 100<<20), "test/large:1")

	first := b.StartCLI("--node-socket", b.HostSocket(), "image", "pull", ref)
	bed.Eventually(t, waitLong, "the registry is asked for parts", func(context.Context) (bool, string) {
		asked := registry.asked()
		return len(asked) > 0, sprint(asked)
	})
	var uids []string
	for i := range 30 {
		s := spec(always, &resourcev1.ContainerSpec{Name: "c", Image: ref, Args: []string{"sleep"}})
		uids = append(uids, ensure(t, b, fmt.Sprint("same-", i), s))
	}
	for _, uid := range uids {
		await(t, b, uid, "waits for the pull", pulling)
	}
	// Who asked first leaves, and so does one of the sandboxes.
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil {
		t.Error("the pull was done before it was killed")
	}
	removeAll(t, b, uids[0])
	close(registry.goOn)
	for _, uid := range uids[1:] {
		got := await(t, b, uid, "running", running)
		if got.GetAttempt() != 1 || len(got.GetExits()) != 0 {
			t.Errorf("got %v, want it to run at the first attempt", got)
		}
	}
	for path, n := range registry.asked() {
		if n > 2 {
			t.Errorf("%s was fetched %d times, want 2 at most", path, n)
		}
	}
	removeAll(t, b, uids[1:]...)
	settled(t, b)
}

// TestNode_PullSaysThatItWaitsItsTurn has a node that pulls one image at once, and a
// person who asks for a second one.
func TestNode_PullSaysThatItWaitsItsTurn(t *testing.T) {
	b, _ := alone(t, bed.Options{Node: "images: {max_pulls: 1}"})
	registry := newSlow()
	served := serveOn(t, b.Listen(), registry.wrap)
	first := push(t, served, larger(t, probeImage(t), 1<<20), "test/first:1")
	second := push(t, served, larger(t, probeImage(t), 1<<20), "test/second:1")
	pulls := b.Begin("--node-socket", b.HostSocket(), "image", "pull", first)
	bed.Eventually(t, waitLong, "the registry is asked for parts", func(context.Context) (bool, string) {
		asked := registry.asked()
		return len(asked) > 0, sprint(asked)
	})
	waits := b.Begin("--node-socket", b.HostSocket(), "image", "pull", second)
	bed.Eventually(t, waitLong, "the second says that it waits", func(context.Context) (bool, string) {
		return strings.Contains(waits.Stderr(), "waiting to begin pulling "+second+": number 1 in the queue"), waits.Stderr()
	})
	close(registry.goOn)
	for _, pull := range []*bed.Running{pulls, waits} {
		if r := pull.Wait(); r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
		}
	}
}

// removeAll removes sandboxes at once and waits until all are torn down.
func removeAll(t *testing.T, b *bed.Bed, uids ...string) {
	t.Helper()
	for _, uid := range uids {
		if _, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: uid, Manager: "local"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range uids {
		remove(t, b, uid)
	}
}

// counter counts the connections that a listener gets.
type counter struct {
	net.Listener
	n atomic.Int32
}

// Accept waits for the next connection.
func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// fillTo has so many percent of the filesystem of all durable data in use.
func fillTo(t *testing.T, b *bed.Bed, percent int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.Paths.Var(""), &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(b.Paths.Var(""), "filler"))
	if err != nil {
		t.Fatal(err)
	}
	size := free(t, b) - int64(st.Blocks)*st.Bsize*(100-percent)/100
	if err := errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, size), f.Close()); err != nil {
		t.Fatalf("fill the disk with %d bytes: %v", size, err)
	}
}

// TestNode_IMG3_ImportedImageNeedsNoRegistry imports an image that is named after
// a registry which counts who comes. What could take it away is the clean-up of a full
// disk, and the runtime's own collection of garbage, which a failed import runs at once.
func TestNode_IMG3_ImportedImageNeedsNoRegistry(t *testing.T) {
	b := bed.New(t, bed.Options{
		Composition: "node", Disabled: nodeAlone,
		Node: "pressure: {disk_min_free: 1MiB, disk_min_free_percent: 0}\nimages: {gc: {high_percent: 90, low_percent: 80, min_free: 1MiB, min_age: 0s, max_age: 1m}}",
	})
	b.PutStateOn("300m")
	b.Start()
	b.WaitReady()
	importProbe(t, b)
	door := &counter{Listener: b.Listen()}
	registry := serveOn(t, door, nil)
	repository := registry.Host() + "/test/probe"
	img := probeImage(t)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(t.TempDir(), "probe.tar")
	if err := image.WriteArchive(img, repository+":1", tar); err != nil {
		t.Fatal(err)
	}
	b.OK("--node-socket", b.HostSocket(), "image", "import", tar)

	runs := func(when string) {
		t.Helper()
		var uids []string
		for name, ref := range map[string]string{
			"tag": repository + ":1", "both": repository + ":1@" + digest.String(), "digest": repository + "@" + digest.String(),
		} {
			c := &resourcev1.ContainerSpec{Name: "c", Image: ref, Args: []string{"sleep"}}
			uid := ensure(t, b, name, spec(always, c))
			await(t, b, uid, "running by "+name+" "+when, running)
			uids = append(uids, uid)
		}
		removeAll(t, b, uids...)
		if n := door.n.Load(); n != 0 {
			t.Fatalf("%s: the registry was asked %d times for an image that is present", when, n)
		}
	}
	runs("after the import")
	settled(t, b)
	if r := b.CLI("--node-socket", b.HostSocket(), "image", "import", cutArchive(t)); r.Code == 0 {
		t.Fatal("half an archive was imported")
	}
	runs("after garbage was collected")
	b.Kill("containerd")
	b.WaitReady()
	runs("after containerd was killed")
	fillTo(t, b, 95)
	bed.Eventually(t, time.Minute, "a full disk was cleaned, as far as that may be", func(context.Context) (bool, string) {
		said := b.Logs()["sandboxhost"]
		return strings.Contains(said, "disk full, and no image may be removed"), said
	})
	b.OK("--node-socket", b.HostSocket(), "image", "prune")
	runs("after a full disk was cleaned")

	// The registry would have been heard, and says what it does not have.
	r := b.CLI("--node-socket", b.HostSocket(), "image", "pull", repository+":2")
	if r.Code == 0 || !strings.Contains(r.Stderr, "no such image") || door.n.Load() == 0 {
		t.Errorf("pull of what is not there: exit code %d after %d connections\n%s", r.Code, door.n.Load(), r.Stderr)
	}

	// One that is not present says so, whether the registry refuses or is silent.
	silent := b.Listen()
	t.Cleanup(func() { _ = silent.Close() })
	begun := time.Now()
	uids := map[string]string{}
	for name, host := range map[string]string{"refuses": "127.0.0.1:1", "silent": silent.Addr().String()} {
		uids[name] = ensure(t, b, name, spec(always, &resourcev1.ContainerSpec{Name: "c", Image: host + "/none:1"}))
	}
	for name, uid := range uids {
		await(t, b, uid, "says that its registry "+name, func(s *resourcev1.SandboxStatus) bool {
			return strings.Contains(s.GetMessage(), "not present and registry unreachable")
		})
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("%s: it took %v to say so, want 15 s at most", name, took)
		}
		removeAll(t, b, uid)
	}
	settled(t, b)
}
