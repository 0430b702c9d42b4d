package initproc

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		line string
		want options
		ok   bool
	}{
		{"-- prog a --", options{args: []string{"prog", "a", "--"}}, true},
		{"--env /e -- prog", options{env: "/e", args: []string{"prog"}}, true},
		{"--exec --env /e -- --env", options{env: "/e", exec: true, args: []string{"--env"}}, true},
		{"--env", options{}, false},
		{"--", options{}, false},
		{"prog", options{}, false},
		{"", options{}, false},
	}
	for _, tt := range tests {
		got, ok := parse(strings.Fields(tt.line))
		if ok != tt.ok || ok && (got.env != tt.want.env || got.exec != tt.want.exec || !slices.Equal(got.args, tt.want.args)) {
			t.Errorf("%q: got %+v, %t, want %+v, %t", tt.line, got, ok, tt.want, tt.ok)
		}
	}
}

func TestEnvironment_IsWholeOrRefused(t *testing.T) {
	raw := AppendEnv(AppendEnv(AppendEnv(nil, "A", []byte("x=y\nz")), "B", nil), "PATH", []byte("/bin"))
	more, err := splitEnv(raw)
	if err != nil {
		t.Fatal(err)
	}
	got := merge([]string{"PATH=/usr/bin", "C=1", "A=old"}, more)
	if want := []string{"PATH=/bin", "C=1", "A=x=y\nz", "B="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range []string{"A=hush", "hush\x00", "=hush\x00"} {
		if _, err := splitEnv([]byte(bad)); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: got %v, want an error that does not repeat it", bad, err)
		}
	}
}
