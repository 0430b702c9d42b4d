package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The examples of the guide are read as they stand there.
func TestGuide_ExamplesAreRead(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/guide/images.md")
	if err != nil {
		t.Fatal(err)
	}
	ca, _ := authority(t)
	blocks := regexp.MustCompile("(?s)```(toml|json)\n(.*?)```").FindAllStringSubmatch(string(raw), -1)
	if len(blocks) != 3 {
		t.Errorf("found %d examples, want 3", len(blocks))
	}
	for _, block := range blocks {
		dir := t.TempDir()
		if block[1] == "json" {
			path := filepath.Join(dir, "auth.json")
			if err := os.WriteFile(path, []byte(block[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			checkAuthExample(t, path)
			continue
		}
		for _, name := range regexp.MustCompile(`ca = "(.*)"`).FindAllStringSubmatch(block[2], -1) {
			pem, err := os.ReadFile(ca)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name[1]), pem, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(block[2]), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readHostsDir(dir)
		if err != nil || !strings.Contains(block[2], "server") {
			t.Errorf("%s: %+v, %v", block[2], got, err)
		}
	}
}

func checkAuthExample(t *testing.T, path string) {
	t.Helper()
	file, err := readAuth(path)
	if err != nil {
		t.Fatal(err)
	}
	for repository, user := range map[string]string{"app": "bob", "team/app": "team"} {
		got, ok, err := file.choose("registry.lan:5000", repository)
		if err != nil || !ok || got.user != user || got.secret != "open-sesame" {
			t.Errorf("%s: got user %s, %t, %v", repository, got.user, ok, err)
		}
	}
	if raw, err := json.Marshal(file.Auths["other.example"]); err != nil || !strings.Contains(string(raw), "eyJ") {
		t.Errorf("the token: %s, %v", raw, err)
	}
}
