package command_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// The last events stand below what is known of a sandbox, the newest last, and none where
// there is none.
func TestDescribe_ShowsTheLastEvents(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result { return cli(t, append([]string{"--node-socket", h.path}, args...)...) }
	want(t, node("run", "-d", "--name", "web", "serve"), 0)
	if got := node("describe", "web"); got.code != 0 || strings.Contains(strings.ToUpper(got.out), "EVENT") {
		t.Errorf("without events: got code %d\n%s", got.code, got.out)
	}
	first, last := timestamppb.New(time.Now().Add(-time.Hour)), timestamppb.Now()
	h.change(func() {
		add := func(uid, reason string) {
			h.events = append(h.events, &sandboxhostv1.Event{
				Seq: uint64(len(h.events) + 1), Uid: uid, Container: "main", Reason: reason, Message: "because of " + reason, Count: 3, FirstAt: first, LastAt: last,
			})
		}
		for i := range 12 {
			add(h.uids()[0], fmt.Sprintf("HAPPENED_%d", i))
		}
		add("01ARZ3NDEKTSV4RRFFQ69G5FAV", "OF_ANOTHER")
	})
	got := node("describe", "web")
	want(t, got, 0, "Name:", "EVENT ", "COUNT")
	_, events, _ := strings.Cut(got.out, "\nEVENT ")
	lines := strings.Split(strings.TrimSpace(events), "\n")[1:]
	if len(lines) != 10 {
		t.Fatalf("got %d events, want 10:\n%s", len(lines), got.out)
	}
	for i, line := range lines {
		reason := fmt.Sprintf("HAPPENED_%d", i+2)
		f := strings.Join(strings.Fields(line), " ")
		if !strings.HasPrefix(f, reason+" main 3 1h ") || !strings.HasSuffix(f, " because of "+reason) {
			t.Errorf("line %d is %q, want %s", i, f, reason)
		}
	}
}

// A node that cannot be asked takes one line, not the rest.
func TestDescribe_SaysInOneLineThatEventsAreNotKnown(t *testing.T) {
	c := newCluster(t)
	want(t, applyIn(c, twoDocuments), 0)
	got := cli(t, c.flags("describe", "web")...)
	want(t, got, 0, "Name:", "RUNNING", "\n\nEvents are not known: ")
	if _, why, _ := strings.Cut(got.out, "Events are not known: "); strings.Count(why, "\n") != 1 || len(why) < 10 {
		t.Errorf("it says why in %q, want one line", why)
	}
}
