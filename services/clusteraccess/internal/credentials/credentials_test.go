package credentials

import (
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
)

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
		_, err := c.files.Load()
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
