package mirror

import (
	"strings"
	"testing"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/services/coordinator/internal/record"
)

// The last states of deleted records are memory like any other.
func TestHistory_BoundsDeletionsByTheirSize(t *testing.T) {
	h := history{}
	gone := &record.Resource{Meta: &resourcev1.Metadata{Name: strings.Repeat("x", 1000)}}
	for n := range uint64(100) {
		h.add(Event{Revision: n + 1, Before: gone})
		h.trim(1000, 10_000)
	}
	if len(h.events) > 10 || h.bytes > 10_000 {
		t.Errorf("%d events with %d bytes are kept, want at most 10,000 bytes", len(h.events), h.bytes)
	}
}
