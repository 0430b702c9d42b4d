package link

import (
	"crypto/x509"
	"path/filepath"
	"testing"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
	"staddle.internal/services/clusteraccess/internal/credentials"
)

func TestIdentity_VerifyCoordinator(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	dir := t.TempDir()
	if err := ours.WriteNode(dir, "spiffe://staddle.test/node/n1"); err != nil {
		t.Fatal(err)
	}
	self, err := credentials.Files{CA: filepath.Join(dir, "ca.crt"), Certificate: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key")}.Load()
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
		err = verifyCoordinator(self, []*x509.Certificate{cert.Leaf}, "coordinator.test")
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if verifyCoordinator(self, nil, "coordinator.test") == nil {
		t.Error("a server without certificate is a coordinator")
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
