package config

import (
	"os"
	"path/filepath"
	"testing"
)

func TestListenAddress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coordinator.yaml")
	if got := ListenAddress(path, GatewayDefault); got != "" {
		t.Errorf("got %q without a file, want none", got)
	}
	for text, want := range map[string]string{
		"version: 1\n":                       GatewayDefault,
		"version: 1\nlisten_address: \"\"\n": "",
		"version: 1\nlisten_address: 10.0.0.1:9000\nfuture: {key: [1]}\n": "10.0.0.1:9000",
		"listen_address: [1]\n": "",
		"- a list\n":            "",
		"{":                     "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ListenAddress(path, GatewayDefault); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
