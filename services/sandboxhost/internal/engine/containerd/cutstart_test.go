package containerd

import "testing"

func TestWaitsForStart(t *testing.T) {
	for command, want := range map[string]bool{
		"runc\x00init\x00": true, "/usr/local/lib/staddle/runc\x00init\x00": true,
		"runc\x00init\x00more\x00": false, "/bin/sh\x00init\x00": false, "runc\x00": false, "": false,
	} {
		if got := waitsForStart([]byte(command)); got != want {
			t.Errorf("%q: got %t, want %t", command, got, want)
		}
	}
}
