package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	if got := String(); !strings.HasPrefix(got, "dev") {
		t.Errorf("unreleased: %q", got)
	}
	Version = "v1.2.3"
	defer func() { Version = "" }()
	if got := String(); got != "v1.2.3" {
		t.Errorf("released: %q", got)
	}
}

func TestDevelop(t *testing.T) {
	got := develop([]debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}})
	if got != "dev-0123456789ab-modified" {
		t.Errorf("got %q", got)
	}
}
