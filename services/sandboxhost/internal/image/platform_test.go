package image

import (
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An image that is made for another platform is told at once, and not by what its
// program does. (LIF-4)
func TestRunnable(t *testing.T) {
	amd64 := platforms.Only(ocispec.Platform{OS: "linux", Architecture: "amd64"})
	for _, c := range []struct {
		name string
		made ocispec.Platform
		ok   bool
	}{
		{"the same", ocispec.Platform{OS: "linux", Architecture: "amd64"}, true},
		{"one that it can run, too", ocispec.Platform{OS: "linux", Architecture: "386"}, true},
		{"another processor", ocispec.Platform{OS: "linux", Architecture: "s390x"}, false},
		{"another system", ocispec.Platform{OS: "windows", Architecture: "amd64"}, false},
		{"under its other name", ocispec.Platform{OS: "linux", Architecture: "x86_64"}, true},
		{"a variant that this node may be", ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: "v2"}, true},
		{"nothing said", ocispec.Platform{}, true},
		{"no processor said", ocispec.Platform{OS: "linux"}, true},
	} {
		if err := runnable(c.made, amd64); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want runnable: %v", c.name, err, c.ok)
		}
	}
}
