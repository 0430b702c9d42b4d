package fdstore

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"staddle.internal/kit/fault"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, text string
		want       order
	}{
		{"ready", "READY=1", order{Message: Message{Ready: true}, name: "stored"}},
		{"several, unknown ones left out", "READY=1\nMAINPID=5\nSTATUS=a=b\n", order{Message: Message{Ready: true, Status: "a=b", HasStatus: true}, name: "stored"}},
		{"empty status", "STATUS=", order{Message: Message{HasStatus: true}, name: "stored"}},
		{"stopping", "STOPPING=1", order{Message: Message{Stopping: true}, name: "stored"}},
		{"only 1 is yes", "READY=0\nSTOPPING=yes", order{name: "stored"}},
		{"store", "FDSTORE=1\nFDPOLL=0\nFDNAME=log-a", order{store: true, name: "log-a"}},
		{"store without a name", "FDSTORE=1", order{store: true, name: "stored"}},
		{"remove", "FDSTOREREMOVE=1\nFDNAME=x", order{remove: true, name: "x"}},
		{"barrier", "BARRIER=1", order{barrier: true, name: "stored"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.text)
			if err != nil || got != tt.want {
				t.Errorf("parse(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
			}
		})
	}
}

func TestParse_Refuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty":               "",
		"no =":                "READY",
		"empty name":          "FDSTORE=1\nFDNAME=",
		"colon in a name":     "FDSTORE=1\nFDNAME=a:b",
		"control character":   "FDSTORE=1\nFDNAME=a\x01",
		"long name":           "FDSTORE=1\nFDNAME=" + strings.Repeat("a", 256),
		"store and remove":    "FDSTORE=1\nFDSTOREREMOVE=1\nFDNAME=a",
		"barrier and another": "BARRIER=1\nREADY=1",
		"too many fields":     strings.Repeat("A=1\n", 65),
	} {
		if _, err := parse(text); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v, want Invalid", name, err)
		}
	}
}

func TestParse_BoundsTheStatus(t *testing.T) {
	o, err := parse("STATUS=" + strings.Repeat("ä", 1000) + "\xff")
	if err != nil || len(o.Status) > maxStatus || len(o.Status) < maxStatus-1 || !utf8.ValidString(o.Status) {
		t.Errorf("status has %d bytes, valid %t, %v", len(o.Status), utf8.ValidString(o.Status), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("READY=1\nSTATUS=x")
	f.Add("FDSTORE=1\nFDNAME=a")
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parse(text)
		if err == nil && (CheckName(o.name) != nil || len(o.Status) > maxStatus || !utf8.ValidString(o.Status)) {
			t.Errorf("parse(%q) = %+v", text, o)
		}
	})
}

func TestPassedTo(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want []string
		bad  bool
	}{
		{"nothing", nil, nil, false},
		{"for nobody in particular", map[string]string{EnvFDs: "2", EnvNames: "a:b"}, []string{"a", "b"}, false},
		{"for us", map[string]string{EnvFDs: "1", EnvPID: "42", EnvNames: "a"}, []string{"a"}, false},
		{"for another", map[string]string{EnvFDs: "1", EnvPID: "43", EnvNames: "a"}, nil, false},
		{"without names", map[string]string{EnvFDs: "2"}, []string{"stored", "stored"}, false},
		{"zero", map[string]string{EnvFDs: "0"}, nil, false},
		{"no number", map[string]string{EnvFDs: "x"}, nil, true},
		{"negative", map[string]string{EnvFDs: "-1"}, nil, true},
		{"absurd", map[string]string{EnvFDs: "99999999"}, nil, true},
		{"names do not fit", map[string]string{EnvFDs: "2", EnvNames: "a"}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, names, err := passedTo(42, func(k string) string { return tt.env[k] })
			if n != len(tt.want) || strings.Join(names, ":") != strings.Join(tt.want, ":") || (err != nil) != tt.bad {
				t.Errorf("passedTo = %d, %q, %v, want %q", n, names, err, tt.want)
			}
		})
	}
}
