package host

import (
	"testing"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// A later attempt is made of the same images, until the spec is another. (IMG-5)
func TestStartAttempt_KeepsTheImages(t *testing.T) {
	at := moment{Wall: time.Unix(1000, 0)}
	spec := &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{Name: "a", Image: "web:1"}, {Name: "b", Image: "web:1"}}}
	r := newRecord(&sandboxhostv1.Wish{Spec: spec, Generation: 1}, "h1", "boot", at)
	noteImages(r, map[string]string{"a": "sha256:1", "gone": "sha256:9"})
	startAttempt(r, 2, "h1", at)
	if got := imagesOf(r.GetStatus()); len(got) != 1 || got["a"] != "sha256:1" {
		t.Errorf("the next attempt for the same spec: got %v", got)
	}
	startAttempt(r, 3, "h2", at)
	if got := imagesOf(r.GetStatus()); len(got) != 0 {
		t.Errorf("an attempt for another spec: got %v, want none", got)
	}
}
