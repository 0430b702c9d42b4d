package main

import (
	"io"
	"slices"
	"testing"

	"staddle.internal/kit/config"
)

func TestChoose(t *testing.T) {
	tests := []struct {
		name, want string
		args, rest []string
	}{
		{"by the name it is called", "storage", []string{"/usr/bin/staddle-storage", "--version"}, []string{"/usr/bin/staddle-storage", "--version"}},
		{"by its first argument", "storage-agent", []string{"bin/staddle-node", "storage-agent", "--root", "/r"}, []string{"staddle-storage-agent", "--root", "/r"}},
		{"no argument", "", []string{"staddle-node"}, []string{"staddle-node"}},
		{"unknown", "x", []string{"staddle-node", "x"}, []string{"staddle-x"}},
		{"nothing at all", "", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name, rest := choose(tt.args)
			if name != tt.want || !slices.Equal(rest, tt.rest) {
				t.Errorf("got %q %v, want %q %v", name, rest, tt.want, tt.rest)
			}
		})
	}
}

// The composition of a node names no process that this file does not hold.
func TestProcesses_HoldTheComposition(t *testing.T) {
	cfg := config.DefaultNode()
	for _, c := range cfg.Graph() {
		if _, ok := processes[c.Name]; !ok && c.Name != config.ContainerdName {
			t.Errorf("got no main of %s, want one", c.Name)
		}
	}
}

func TestUsage_ExitCodes(t *testing.T) {
	for name, want := range map[string]int{"--help": 0, "--version": 0, "": 2, "x": 2} {
		if got := usage(name, io.Discard, io.Discard); got != want {
			t.Errorf("got exit code %d for %q, want %d", got, name, want)
		}
	}
}
