package image

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"staddle.internal/services/sandboxhost/internal/testimage"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// asked is one request that a registry got.
type asked struct {
	method, path, authorization, secretHeader, ranged string
	sent                                              int64 // bytes of the answer's body
}

// door stands before a registry, and notes and changes what passes.
type door struct {
	host   string
	behind string // the registry itself, without any door

	mu    sync.Mutex
	seen  []*asked
	rule  func(w http.ResponseWriter, r *http.Request, next http.Handler)
	inUse int // blobs that are being sent
	most  int
}

// open serves a registry, with TLS if a certificate is given.
func open(t *testing.T, cert *tls.Certificate) *door {
	t.Helper()
	d := &door{behind: testimage.Serve(t)}
	target, err := url.Parse("http://" + d.behind)
	if err != nil {
		t.Fatal(err)
	}
	proxy := ranging(httputil.NewSingleHostReverseProxy(target))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, proxy) }))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if cert != nil {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	d.host = s.Listener.Addr().String()
	return d
}

// ranging serves what follows an offset, which the registry for tests cannot.
func ranging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			next.ServeHTTP(w, r)
			return
		}
		whole, all := httptest.NewRecorder(), r.Clone(r.Context())
		all.Header.Del("Range")
		next.ServeHTTP(whole, all)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(whole.Body.Bytes()))
	})
}

func (d *door) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	a := &asked{
		method: r.Method, path: r.URL.Path, authorization: r.Header.Get("Authorization"),
		secretHeader: r.Header.Get("X-Secret"), ranged: r.Header.Get("Range"),
	}
	d.mu.Lock()
	d.seen = append(d.seen, a)
	rule := d.rule
	if blob(r) {
		d.inUse++
		d.most = max(d.most, d.inUse)
	}
	d.mu.Unlock()
	counting := &countedWriter{ResponseWriter: w}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		a.sent = counting.n
		if blob(r) {
			d.inUse--
		}
	}()
	if rule != nil {
		rule(counting, r, next)
		return
	}
	next.ServeHTTP(counting, r)
}

func (d *door) rules(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rule, d.seen = f, nil
}

// requests returns what was asked since the rule was set, where keep says so.
func (d *door) requests(keep func(a asked) bool) []asked {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []asked
	for _, a := range d.seen {
		if keep(*a) {
			all = append(all, *a)
		}
	}
	return all
}

func every(asked) bool { return true }

// forBlob keeps the fetches of one part.
func forBlob(digest v1.Hash) func(asked) bool {
	return func(a asked) bool { return a.method == http.MethodGet && strings.HasSuffix(a.path, digest.String()) }
}

func blob(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
}

type countedWriter struct {
	http.ResponseWriter
	n int64
}

// Write counts.
func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// Unwrap is for flushing.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// push puts an image behind the door and returns how a node names it.
func (d *door) push(t *testing.T, repository string, img v1.Image) string {
	t.Helper()
	testimage.Push(t, d.behind+"/"+repository, img)
	return d.host + "/" + repository
}

// authority makes a CA and a certificate for loopback, and writes the CA to a file.
func authority(t *testing.T) (caFile string, cert *tls.Certificate) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "registry"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	must(err)
	caFile = filepath.Join(t.TempDir(), "ca.crt")
	must(os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600))
	return caFile, &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// configured is a store with a folder for registries and a file of credentials.
type configured struct {
	*Store
	runtime *testruntime.Runtime
	dir     string
	auth    string
	log     *bytes.Buffer // what it has logged; read when nothing goes on
}

func newConfigured(t *testing.T, change func(*Config)) *configured {
	t.Helper()
	r := testruntime.Start(t)
	c := r.Client(t)
	s := &configured{runtime: r, dir: t.TempDir(), auth: filepath.Join(t.TempDir(), "auth.json"), log: &bytes.Buffer{}}
	cfg := Config{Snapshotter: "overlayfs", RegistryDir: s.dir, AuthFile: s.auth}
	if change != nil {
		change(&cfg)
	}
	s.Store = New(cfg, Deps{
		Client: func() (*containerd.Client, error) { return c, nil },
		Log:    slog.New(slog.NewTextHandler(s.log, nil)),
	})
	return s
}

// hosts writes the hosts.toml of a registry.
func (s *configured) hosts(t *testing.T, registry, text string) {
	t.Helper()
	dir := filepath.Join(s.dir, registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// login writes the file of credentials, as docker does.
func (s *configured) login(t *testing.T, auths map[string]authEntry) {
	t.Helper()
	raw, err := json.Marshal(authFile{Auths: auths})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.auth, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func basic(user, password string) authEntry {
	return authEntry{Auth: base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
}

// asksFor is a rule: who does not know the password is sent away.
func asksFor(user, password string) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		u, p, ok := r.BasicAuth()
		if !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// withLayers adds layers of so many random bytes to the test's image.
func withLayers(t *testing.T, sizes ...int64) v1.Image {
	t.Helper()
	img := testimage.New(t)
	for _, size := range sizes {
		layer, err := random.Layer(size, types.DockerLayer)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// lastLayer is digest and size of the last layer.
func lastLayer(t *testing.T, img v1.Image) (v1.Hash, int64) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer := layers[len(layers)-1]
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := layer.Size()
	if err != nil {
		t.Fatal(err)
	}
	return digest, size
}

// cutAfter answers with the first bytes of a part and closes the connection.
func cutAfter(w http.ResponseWriter, r *http.Request, next http.Handler, n int) {
	whole := httptest.NewRecorder()
	next.ServeHTTP(whole, r)
	for name, values := range whole.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
	w.WriteHeader(whole.Code)
	_, _ = w.Write(whole.Body.Bytes()[:min(n, whole.Body.Len())]) // the client may be gone
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
