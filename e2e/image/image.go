// Package image makes container images from single static programs, without
// any network: as OCI archives, and served by a registry on loopback. The first
// sandbox, the end-to-end tests and the benchmarks take their images from here.
//
// It must never be linked into a process of a node.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"staddle.internal/kit/wholefile"
)

// refName is the annotation by which an OCI layout names its images.
const refName = "org.opencontainers.image.ref.name"

// containerdName is the annotation with the full name that containerd reads.
const containerdName = "io.containerd.image.name"

// Build compiles the Go package in dir as a static program to the file out.
func Build(dir, out string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", dir, err, text)
	}
	return nil
}

// FromProgram makes an image for this platform whose only file is the program,
// at /<its base name>, which is also the entrypoint. The same program always
// gives the same image.
func FromProgram(program string) (v1.Image, error) {
	raw, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	file := filepath.Base(program)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: file, Mode: 0o755, Size: int64(len(raw))},
	} {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{"/" + file}
	config.Config.Env = []string{"PATH=/"}
	config.Config.WorkingDir = "/"
	return mutate.ConfigFile(img, config)
}

// WriteArchive writes img as an OCI archive under a full name such as
// "staddle.local/hello:1" to the file out, whole or not at all. Of two at once
// the last one stays.
func WriteArchive(img v1.Image, fullName, out string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(out), ".layout-")
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{refName: fullName, containerdName: fullName})); err != nil {
		return err
	}
	return wholefile.Replace(out, 0o644, func(f *os.File) error {
		w := tar.NewWriter(f)
		return firstError(w.AddFS(os.DirFS(dir)), w.Close())
	})
}

// Registry is an image registry on loopback.
type Registry struct {
	server *httptest.Server
	store  http.Handler
}

// Serve starts a registry on a listener, which it closes in the end. wrap, if not
// nil, goes around its handler, to count or to break the requests of nodes.
func Serve(on net.Listener, wrap func(http.Handler) http.Handler) *Registry {
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	handler := store
	if wrap != nil {
		handler = wrap(handler)
	}
	server := &httptest.Server{Listener: on, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	server.Start()
	return &Registry{server: server, store: store}
}

// Host is the registry's host and port.
func (r *Registry) Host() string { return r.server.Listener.Addr().String() }

// Push puts img into the registry, past the network and the wrapping, and returns
// its full reference.
func (r *Registry) Push(img v1.Image, repository string) (string, error) {
	full := r.Host() + "/" + repository
	ref, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		return "", err
	}
	return full, remote.Write(ref, img, remote.WithTransport(direct{r.store}))
}

// direct hands requests to a handler without any connection.
type direct struct{ to http.Handler }

// RoundTrip serves one request.
func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	served := req.Clone(req.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.to.ServeHTTP(w, served)
	if err := served.Body.Close(); err != nil {
		return nil, err
	}
	res := w.Result()
	res.Request = req
	return res, nil
}

// Close ends the registry.
func (r *Registry) Close() { r.server.Close() }

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
