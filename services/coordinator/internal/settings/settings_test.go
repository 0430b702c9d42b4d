package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"staddle.internal/kit/config"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "coordinator.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad_VersionAloneIsTheDefault(t *testing.T) {
	s, err := Load(write(t, "version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := Default(); s.ListenAddress != want.ListenAddress || s.Etcd.Prefix != want.Etcd.Prefix || s.LostGrace != want.LostGrace || s.ServicePrefix != want.ServicePrefix {
		t.Errorf("got %+v, want %+v", s, want)
	}
}

func TestLoad_TellsEverythingWrongAtOnce(t *testing.T) {
	_, err := Load(write(t, `version: 2
listen_adress: 127.0.0.1:1
trust_domain: "A B"
etcd:
  endpoints: ["http://10.0.0.1:2379"]
  certificate: relative
  prefix: staddle
bootstrap:
  node: N1
lost_grace: 5
service_prefix: 10.78.0.1/17
refused_identities: [user/alice, alice]
`))
	wrong, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("got %v, want a configuration error", err)
	}
	for _, want := range []string{":1: version", `:2: listen_adress: the key is unknown; the nearest known key is "listen_address"`,
		":3: trust_domain", ":5: etcd.endpoints[0]", ":6: etcd.certificate", "etcd.key", ":7: etcd.prefix", ":9: bootstrap.node", ":10: lost_grace",
		":11: service_prefix", `:12: refused_identities[1]: "alice" is no identity`} {
		if !strings.Contains(wrong.Error(), want) {
			t.Errorf("got %s\nwant it to contain %q", wrong, want)
		}
	}
}

// No network means no services; what is no network that services can have is refused.
func TestLoad_ServicePrefix(t *testing.T) {
	for text, good := range map[string]bool{
		`""`: true, "192.0.2.0/30": true, "10.0.0.0/8": true, "192.0.2.0/31": false, "10.0.0.0/7": false, "fd00::/64": false, "192.0.2.1/24": false,
	} {
		s, err := Load(write(t, "version: 1\nservice_prefix: "+text+"\n"))
		if (err == nil) != good || good && (s.ServicePrefix.IsValid() != (text != `""`)) {
			t.Errorf("%s: got %v, %v, want it taken: %t", text, s.ServicePrefix, err, good)
		}
	}
}

func TestLoad_AbsenceIsAnError(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "coordinator.yaml")); err == nil {
		t.Error("got nil, want an error that names the file")
	}
}
