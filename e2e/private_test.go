package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// loopbackCertificate makes a CA in a file and a certificate by it.
func loopbackCertificate(t *testing.T, caFile string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	both := &x509.Certificate{ // it signs itself, which does for a CA
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, both, both, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o644)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// wants lets in who knows the password, and counts who is let in.
func wants(user, password string, in *atomic.Int32, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		in.Add(1)
		h.ServeHTTP(w, r)
	})
}

// TestNode_PullsPrivatelyThroughAMirror has a registry with TLS, a CA of its own and a
// password, and a mirror of it with another password, to which one layer is missing.
func TestNode_PullsPrivatelyThroughAMirror(t *testing.T) {
	const ours, theirs = "open-sesame-4711", "mirror-secret-0815"
	b, _ := alone(t, bed.Options{})
	dir := t.TempDir()
	cert := loopbackCertificate(t, filepath.Join(dir, "ca.crt"))
	settings := &tls.Config{Certificates: []tls.Certificate{cert}}
	var atRegistry, atMirror atomic.Int32
	img := larger(t, probeImage(t), 1<<20)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	missing, err := layers[len(layers)-1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	registry := serveOn(t, tls.NewListener(b.Listen(), settings), func(h http.Handler) http.Handler { return wants("bob", ours, &atRegistry, h) })
	mirror := serveOn(t, tls.NewListener(b.Listen(), settings), func(h http.Handler) http.Handler {
		return wants("mirror", theirs, &atMirror, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, missing.String()) {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			h.ServeHTTP(w, r)
		}))
	})
	ref := push(t, registry, img, "team/app:1")
	push(t, mirror, img, "team/app:1")

	certs := filepath.Join(b.Paths.Etc(), "certs.d", registry.Host())
	// Loopback is spoken to without TLS where nothing else is said.
	write(t, filepath.Join(certs, "hosts.toml"), fmt.Sprintf("server = \"https://%s\"\n", registry.Host()), 0o644)
	c := &resourcev1.ContainerSpec{Name: "c", Image: ref, Args: []string{"sleep"}}
	uid := ensure(t, b, "private", spec(always, c))
	await(t, b, uid, "says that nobody vouches for the registry", func(s *resourcev1.SandboxStatus) bool {
		return strings.Contains(s.GetMessage(), "certificate") && strings.Contains(s.GetMessage(), registry.Host())
	})
	text := fmt.Sprintf("server = \"https://%s\"\nca = %q\n[host.\"https://%s\"]\nca = %q\n", registry.Host(), filepath.Join(dir, "ca.crt"), mirror.Host(), filepath.Join(dir, "ca.crt"))
	write(t, filepath.Join(certs, "hosts.toml"), text, 0o644)
	await(t, b, uid, "says that it has no credentials", func(s *resourcev1.SandboxStatus) bool {
		return strings.Contains(s.GetMessage(), "credentials") && strings.Contains(s.GetMessage(), mirror.Host())
	})
	// It goes on once that is mended; nothing has to be started anew.
	entry := func(user, password string) string {
		return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	}
	write(t, filepath.Join(b.Paths.Etc(), "auth.json"), fmt.Sprintf(`{"auths": {%q: {"auth": %q}, %q: {"auth": %q}}}`,
		registry.Host()+"/team", entry("bob", ours), mirror.Host(), entry("mirror", theirs)), 0o600)
	await(t, b, uid, "running", running)
	if atMirror.Load() == 0 || atRegistry.Load() == 0 {
		t.Errorf("the mirror was asked %d times and the registry %d times, want each at least once", atMirror.Load(), atRegistry.Load())
	}
	for process, said := range b.Logs() {
		for _, secret := range []string{ours, theirs, entry("bob", ours), entry("mirror", theirs)} {
			if strings.Contains(said, secret) {
				t.Errorf("%s has logged a password", process)
			}
		}
	}
	removeAll(t, b, uid)
	settled(t, b)
}
