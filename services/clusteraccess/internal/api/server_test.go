package api

import (
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestFit(t *testing.T) {
	of := func(n, bytes int) []*resourcev1.Resource {
		all := make([]*resourcev1.Resource, n)
		for i := range all {
			all[i] = &resourcev1.Resource{Meta: &resourcev1.Metadata{Name: strings.Repeat("x", bytes)}}
		}
		return all
	}
	for name, c := range map[string]struct{ n, bytes, want int }{
		"none": {0, 0, 0}, "all": {100, 1 << 10, 100}, "some": {100, 200 << 10, 10}, "one that is larger than a page": {3, 3 << 20, 1},
	} {
		got := fit(of(c.n, c.bytes))
		if got != c.want {
			t.Errorf("%s: got %d of %d, want %d", name, got, c.n, c.want)
		}
	}
}
