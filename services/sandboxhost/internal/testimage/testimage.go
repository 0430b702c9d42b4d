// Package testimage makes container images for tests out of files, without any
// network: a static Go program that does what a test needs, in one layer, and
// serves them from a registry on loopback or as an archive.
//
// It must never fetch anything. It is for tests only and stands outside the
// trail.
package testimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Program is where the program lies in an image. Its modes are those of
// testdata/prog.
const Program = "/bin/prog"

// File is one file of an image.
type File struct {
	// Name is its absolute path.
	Name string
	// Mode is its permissions.
	Mode int64
	// Data is its content.
	Data []byte
}

var build = sync.OnceValues(func() ([]byte, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return nil, fmt.Errorf("where this file lies is unknown")
	}
	dir, err := os.MkdirTemp("", "prog")
	if err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "prog")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = filepath.Join(filepath.Dir(here), "testdata", "prog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build test program: %w\n%s", err, said)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return raw, os.RemoveAll(dir)
})

// New makes an image with the program, accounts for "root" and "app" (uid 1000,
// also in group 2000), and the given files.
func New(t testing.TB, files ...File) v1.Image {
	t.Helper()
	prog, err := build()
	if err != nil {
		t.Fatal(err)
	}
	all := append([]File{
		{Name: Program, Mode: 0o755, Data: prog},
		{Name: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n")},
		{Name: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\napp:x:1000:\nmore:x:2000:app\n")},
		{Name: "/tmp/.keep", Mode: 0o644},
	}, files...)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive(t, all))), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{Program}
	config.Config.Cmd = []string{"sleep"}
	config.Config.Env = []string{"PATH=/bin", "FROM_IMAGE=yes"}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// With adds a layer with files to an image. It is not compressed, and so costs no time.
func With(t testing.TB, img v1.Image, files ...File) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(img, static.NewLayer(archive(t, files), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func archive(t testing.TB, files []File) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := &tar.Header{Name: strings.TrimPrefix(f.Name, "/"), Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Serve serves a registry on loopback until the test ends, and returns its host.
func Serve(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// Push puts an image into a registry under host/path.
func Push(t testing.TB, ref string, img v1.Image) {
	t.Helper()
	tag, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatalf("push %s: %v", ref, err)
	}
}

// Archive is an image as docker saves it.
func Archive(t testing.TB, ref string, img v1.Image) []byte {
	t.Helper()
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tarball.Write(tag, img, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// PushIndex puts an image for several platforms into a registry under host/path.
func PushIndex(t testing.TB, ref string, index v1.ImageIndex) {
	t.Helper()
	tag, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatalf("push %s: %v", ref, err)
	}
}
