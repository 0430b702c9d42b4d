package id_test

import (
	"errors"
	"strings"
	"testing"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

func TestNew_IsAccepted(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		s := id.New()
		if err := id.CheckUID(s); err != nil {
			t.Fatalf("CheckUID(%q) = %v, want nil", s, err)
		}
		if seen[s] {
			t.Fatalf("New() gave %q twice", s)
		}
		seen[s] = true
	}
}

func TestCheckUID(t *testing.T) {
	tests := []struct{ name, uid, want string }{
		{"empty", "", "26"},
		{"short", "01ARZ3NDEKTSV4RRFFQ69G5FA", "26"},
		{"long", strings.Repeat("0", 5000), "26"},
		{"lower case", "01arz3ndektsv4rrffq69g5fav", "upper case"},
		{"letter outside of the alphabet", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "uid"},
		{"too large for 128 bits", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "overflow"},
		{"a letter that reads as a digit", "O1ARZ3NDEKTSV4RRFFQ69G5FAV", "uid"},
		{"right", "01ARZ3NDEKTSV4RRFFQ69G5FAV", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, id.CheckUID(tt.uid), tt.want) })
	}
}

func TestCheckName(t *testing.T) {
	tests := []struct{ name, value, want string }{
		{"empty", "", "is empty"},
		{"one letter", "a", ""},
		{"digits", "0-9", ""},
		{"longest", strings.Repeat("a", 63), ""},
		{"too long", strings.Repeat("a", 64), "at most 63"},
		{"upper case", "Web", `'W'`},
		{"dot", "a.b", `'.'`},
		{"umlaut", "käse", `'ä'`},
		{"begins with -", "-a", "begins or ends"},
		{"ends with -", "a-", "begins or ends"},
		{"control character", "a\nb", `'\n'`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := id.CheckName("meta.name", tt.value)
			check(t, err, tt.want)
			if err != nil && !strings.HasPrefix(err.Error(), "meta.name: ") {
				t.Errorf("error %q does not name the field", err)
			}
		})
	}
}

func TestSandbox_NamesDeriveFromIt(t *testing.T) {
	s, err := id.ParseSandbox("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Lower(), "01arz3ndektsv4rrffq69g5fav"; got != want {
		t.Errorf("Lower() = %q, want %q", got, want)
	}
	if got, want := s.Short(), "rffq69g5fav"; got != want {
		t.Errorf("Short() = %q, want %q", got, want)
	}
	if got, want := s.Attr().String(), "sandbox_id=01ARZ3NDEKTSV4RRFFQ69G5FAV"; got != want {
		t.Errorf("Attr() = %q, want %q", got, want)
	}
}

func TestTypes_EachHasItsOwnKey(t *testing.T) {
	for want, got := range map[string]string{
		"sandbox_id": id.NewSandbox().Attr().Key,
		"disk_id":    id.NewDisk().Attr().Key,
		"node_id":    id.NewNode().Attr().Key,
	} {
		if got != want {
			t.Errorf("key = %q, want %q", got, want)
		}
	}
	if _, err := id.ParseDisk("x"); !errors.Is(err, fault.Invalid) {
		t.Errorf("ParseDisk(x) = %v, want Invalid", err)
	}
	if _, err := id.ParseNode("x"); !errors.Is(err, fault.Invalid) {
		t.Errorf("ParseNode(x) = %v, want Invalid", err)
	}
}

// check requires an Invalid error that contains want, or none if want is empty.
func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got error %v, want none", err)
	case want != "" && !errors.Is(err, fault.Invalid):
		t.Errorf("got %v, want Invalid", err)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got error %q, want one with %q", err, want)
	case want != "" && len(err.Error()) > 300:
		t.Errorf("error has %d characters", len(err.Error()))
	}
}
