package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func authority(dir string, names ...string) *Authority {
	return New(Config{
		Dir: dir, TrustDomain: "test.local", Name: "c1", ServerNames: append([]string{"localhost", "127.0.0.1"}, names...),
		Identities: []Identity{{Kind: "node", Name: "n1", File: "node"}, {Kind: "user", Name: "admin", File: "operator"}},
	}, Deps{Log: slog.New(slog.DiscardHandler)})
}

// contents reads all files of a folder.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, e := range entries {
		if out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func changed(before, after map[string][]byte) []string {
	var names []string
	for name, data := range after {
		if !bytes.Equal(before[name], data) {
			names = append(names, name)
		}
	}
	return names
}

func TestEnsure_MakesAllOnceAndKeepsIt(t *testing.T) {
	dir := t.TempDir()
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	first := contents(t, dir)
	for _, file := range []string{"ca", "coordinator", "node", "operator"} {
		for ending, mode := range map[string]os.FileMode{".crt": 0o644, ".key": 0o600} {
			info, err := os.Stat(filepath.Join(dir, file+ending))
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s%s: got %v and %v, want mode %v", file, ending, info, err, mode)
			}
		}
	}
	if len(first) != 8 {
		t.Errorf("got %d files, want 8", len(first))
	}
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	if names := changed(first, contents(t, dir)); len(names) != 0 {
		t.Errorf("second start changed %v, want nothing", names)
	}
}

// A folder that is carried elsewhere has all that is needed there, and follows the CA.
func TestEnsure_PutsTheCABesideWhatIsCarried(t *testing.T) {
	dir := t.TempDir()
	a := authority(dir)
	a.cfg.Identities = append(a.cfg.Identities, Identity{Kind: "node", Name: "n2", File: "nodes/n2/node"})
	beside := filepath.Join(dir, "nodes/n2/ca.crt")
	for _, damage := range [][]byte{nil, []byte("half a cert"), nil} {
		if damage != nil {
			if err := os.WriteFile(beside, damage, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Ensure(time.Now()); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		files := contents(t, filepath.Join(dir, "nodes/n2"))
		if len(files) != 3 || !bytes.Equal(files["ca.crt"], want) {
			t.Errorf("got %d files and the CA %q, want that of the cluster beside certificate and key", len(files), files["ca.crt"])
		}
	}
}

// SEC-4: what is issued is valid on a machine whose clock is behind.
func TestEnsure_IssuesWhatVerifies(t *testing.T) {
	dir := t.TempDir()
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := readCertificate(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	for file, c := range map[string]struct {
		uri   string
		usage x509.ExtKeyUsage
		host  string
	}{
		"coordinator": {"spiffe://test.local/coordinator/c1", x509.ExtKeyUsageServerAuth, "127.0.0.1"},
		"node":        {"spiffe://test.local/node/n1", x509.ExtKeyUsageClientAuth, "n1.node.test.local"},
		"operator":    {"spiffe://test.local/user/admin", x509.ExtKeyUsageClientAuth, ""},
	} {
		cert, err := readCertificate(filepath.Join(dir, file+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = cert.Verify(x509.VerifyOptions{
			Roots: pool, KeyUsages: []x509.ExtKeyUsage{c.usage}, DNSName: c.host, CurrentTime: time.Now().Add(-time.Minute),
		})
		if err != nil || len(cert.URIs) != 1 || cert.URIs[0].String() != c.uri {
			t.Errorf("%s: got %v and %v, want %s", file, cert.URIs, err, c.uri)
		}
	}
}

// Whoever is refused is not let in with a certificate that is valid, by name and not by
// likeness.
func TestServer_RefusesWhoIsOnTheList(t *testing.T) {
	dir := t.TempDir()
	a := authority(dir)
	a.cfg.Refused = []string{"spiffe://test.local/user/admin", "spiffe://test.local/node/n"}
	if err := a.Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"operator": "spiffe://test.local/user/admin is refused", "node": ""} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, file+".crt"), filepath.Join(dir, file+".key"))
		if err != nil {
			t.Fatal(err)
		}
		there, here := net.Pipe()
		go func() { // ends with the pipe
			client := tls.Client(there, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true})
			if client.Handshake() == nil {
				_, _ = io.Copy(io.Discard, client) // takes the alert, if there is one
			}
		}()
		err = tls.Server(here, a.Server()).HandshakeContext(t.Context())
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
		_ = here.Close()
		_ = there.Close()
	}
}

func TestEnsure_RenewsCertificatesAndKeepsKeys(t *testing.T) {
	dir := t.TempDir()
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	first := contents(t, dir)
	if err := authority(dir, "c1.test.local").Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	second := contents(t, dir)
	if names := changed(first, second); len(names) != 1 || names[0] != "coordinator.crt" {
		t.Errorf("a new server name changed %v, want coordinator.crt alone", names)
	}
	// SEC-3: also long after the end of a certificate.
	if err := authority(dir, "c1.test.local").Ensure(time.Now().Add(2 * leafLife)); err != nil {
		t.Fatal(err)
	}
	for _, name := range changed(second, contents(t, dir)) {
		if strings.HasSuffix(name, ".key") || name == "ca.crt" {
			t.Errorf("%s was replaced", name)
		}
	}
}

func TestEnsure_NeverReplacesWhatIsBroken(t *testing.T) {
	other := t.TempDir()
	if err := authority(other).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	foreign := contents(t, other)
	for _, c := range []struct {
		name, file string
		data       []byte // nil removes it
	}{
		{"an empty CA key", "ca.key", []byte{}},
		{"a garbled CA key", "ca.key", []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")},
		{"a CA key of another CA", "ca.key", foreign["ca.key"]},
		{"an empty CA certificate", "ca.crt", []byte{}},
		{"a half-written node key", "node.key", foreign["node.key"][:60]},
		{"a node key of another node", "node.key", foreign["node.key"]},
		{"a node certificate of another CA", "node.crt", foreign["node.crt"]},
		{"a certificate without its key", "operator.key", nil},
	} {
		dir := t.TempDir()
		if err := authority(dir).Ensure(time.Now()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, c.file)
		err := os.Remove(path)
		if c.data != nil {
			err = os.WriteFile(path, c.data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		if err := authority(dir).Ensure(time.Now()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names %s", c.name, err, path)
		}
		if names := changed(before, contents(t, dir)); len(names) != 0 {
			t.Errorf("%s: changed %v, want nothing", c.name, names)
		}
	}
}

// A start that was cut off between key and certificate goes on from there.
func TestEnsure_GoesOnAfterACut(t *testing.T) {
	for _, file := range []string{"ca.crt", "node.crt"} {
		dir := t.TempDir()
		if err := authority(dir).Ensure(time.Now()); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
		if err := authority(dir).Ensure(time.Now()); err != nil {
			t.Errorf("without %s: %v", file, err)
		}
		for _, name := range changed(before, contents(t, dir)) {
			if name != file {
				t.Errorf("without %s: %s was replaced too", file, name)
			}
		}
	}
}

func TestEnsure_ACAWithoutKeyServesWhatIsIssued(t *testing.T) {
	dir := t.TempDir()
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := authority(dir).Ensure(time.Now()); err != nil {
		t.Errorf("nothing to issue: %v", err)
	}
	if err := authority(dir, "new.test.local").Ensure(time.Now()); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("something to issue: got %v, want an error that names ca.key", err)
	}
}

// A certificate whose names could never be found again would be issued at each look.
func TestEnsure_TrustDomainThatIsNoHostName(t *testing.T) {
	dir := t.TempDir()
	odd := New(Config{
		Dir: dir, TrustDomain: "a.-b", Name: "c1", Identities: []Identity{{Kind: "node", Name: "n1", File: "node"}},
	}, Deps{Log: slog.New(slog.DiscardHandler)})
	if err := odd.Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	first := contents(t, dir)
	if err := odd.Ensure(time.Now()); err != nil {
		t.Fatal(err)
	}
	if names := changed(first, contents(t, dir)); len(names) != 0 {
		t.Errorf("a second look changed %v, want nothing", names)
	}
}
