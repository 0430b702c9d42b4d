package link

import (
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
)

func TestIdentity_VerifyCoordinator(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	dir := t.TempDir()
	if err := ours.WriteNode(dir, "spiffe://staddle.test/node/n1"); err != nil {
		t.Fatal(err)
	}
	self, err := Files{CA: filepath.Join(dir, "ca.crt"), Certificate: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key")}.load()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		by       *coordinatortest.Authority
		identity string
		hosts    []string
		ok       bool
	}{
		{"a coordinator of our domain, wherever it is", ours, "spiffe://staddle.test/coordinator/c1", nil, true},
		{"a coordinator of another domain", ours, "spiffe://other.test/coordinator/c1", []string{"coordinator.test"}, false},
		{"a node, even with the right host name", ours, "spiffe://staddle.test/node/n2", []string{"coordinator.test"}, false},
		{"a person", ours, "spiffe://staddle.test/user/admin", []string{"coordinator.test"}, false},
		{"a coordinator without a name", ours, "spiffe://staddle.test/coordinator/", []string{"coordinator.test"}, false},
		{"no identity, and the right host name", ours, "", []string{"coordinator.test"}, true},
		{"no identity, and another host name", ours, "", []string{"else.test"}, false},
		{"the right identity by another authority", theirs, "spiffe://staddle.test/coordinator/c1", []string{"coordinator.test"}, false},
	} {
		cert, err := c.by.Issue(c.identity, c.hosts...)
		if err != nil {
			t.Fatal(err)
		}
		err = self.verifyCoordinator([]*x509.Certificate{cert.Leaf}, "coordinator.test")
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if self.verifyCoordinator(nil, "coordinator.test") == nil {
		t.Error("a server without certificate is a coordinator")
	}
}

func TestFiles_LoadNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	a := authority(t)
	if err := a.WriteNode(dir, "spiffe://staddle.test/user/admin"); err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		name  string
		files Files
		says  string
	}{
		{"no CA", Files{CA: path("none.crt")}, "none.crt"},
		{"a CA that is none", Files{CA: path("node.key")}, "holds no certificate"},
		{"no certificate", Files{CA: path("ca.crt"), Certificate: path("none"), Key: path("node.key")}, "none"},
		{"a key of another", Files{CA: path("ca.crt"), Certificate: path("ca.crt"), Key: path("node.key")}, "private key"},
		{"a person's certificate", Files{CA: path("ca.crt"), Certificate: path("node.crt"), Key: path("node.key")}, "/node/"},
	} {
		_, err := c.files.load()
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want it to say %q", c.name, err, c.says)
		}
	}
}

func authority(t *testing.T) *coordinatortest.Authority {
	t.Helper()
	a, err := coordinatortest.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}
