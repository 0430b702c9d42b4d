package rpc

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// gated is a process that waits for neighbours at the given sockets.
func gated(t *testing.T, sockets map[string]string) (*Status, chan struct{}) {
	t.Helper()
	var neighbours []Neighbour
	for name, path := range sockets {
		neighbours = append(neighbours, Neighbour{name, dial(t, path, DialConfig{})})
	}
	st := NewStatus("sandboxhost", "test")
	ready := make(chan struct{})
	member := Gate(st, slog.New(slog.DiscardHandler), neighbours...)
	run := member.Run
	member.Run = func(ctx context.Context, _ func()) error {
		return run(ctx, func() { st.SetReady(); close(ready) })
	}
	background(t, member)
	return st, ready
}

func waitReason(t *testing.T, st *Status, pattern string, waitingFor ...string) {
	t.Helper()
	re := regexp.MustCompile("^" + pattern + "$")
	eventually(t, "reason "+pattern, func() (any, bool) {
		got := st.Get()
		return got, re.MatchString(got.GetReason()) && slices.Equal(got.GetWaitingFor(), waitingFor)
	})
}

func waitState(t *testing.T, st *Status, want processv1.ProcessState) {
	t.Helper()
	eventually(t, want.String(), func() (any, bool) { got := st.Get(); return got, got.GetState() == want })
}

func TestGate_TextsOfALife(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	st, ready := gated(t, map[string]string{"storage": path})
	waitReason(t, st, "waiting for storage: no such file or directory for [0-9]+s", "storage")

	deadSocket(t, path)
	waitReason(t, st, "waiting for storage: connection refused for [0-9]+s", "storage")

	storage := setup{path: path, cold: true}.start(t)
	storage.Status().SetNotReady("recovering 3 volumes")
	waitReason(t, st, "waiting for storage: recovering 3 volumes for [0-9]+s", "storage")
	storage.Status().SetNotReady("recovering 2 volumes")
	waitReason(t, st, "waiting for storage: recovering 2 volumes for [0-9]+s", "storage")
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_STARTING)
	select {
	case <-ready:
		t.Fatal("ready before the neighbour")
	default:
	}

	storage.Status().SetReady()
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_READY)
	<-ready

	storage.Status().SetNotReady("disk away")
	waitReason(t, st, "waiting for storage: disk away for [0-9]+s", "storage")
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_NOT_READY)
	storage.Status().SetReady()
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_READY)

	storage.stop()
	waitReason(t, st, "waiting for storage: .+ for [0-9]+s", "storage")
	setup{path: path}.start(t)
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_READY)
}

func TestGate_WaitsForAll(t *testing.T) {
	dir := shortDir(t)
	a, b := filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")
	st, ready := gated(t, map[string]string{"storage": a, "containerd": b})
	waitReason(t, st, "waiting for containerd: no such file or directory for [0-9]+s; waiting for storage: no such file or directory for [0-9]+s",
		"containerd", "storage")
	setup{path: a}.start(t)
	waitReason(t, st, "waiting for containerd: no such file or directory for [0-9]+s", "containerd")
	setup{path: b}.start(t)
	<-ready
	waitState(t, st, processv1.ProcessState_PROCESS_STATE_READY)
}

func TestGate_CarriesACauseOutsideTheMachine(t *testing.T) {
	n := setup{cold: true}.start(t)
	n.Status().SetExternal("the registry does not answer")
	st, _ := gated(t, map[string]string{"storage": n.path})
	waitReason(t, st, "waiting for storage: the registry does not answer for [0-9]+s", "storage")
	eventually(t, "external", func() (any, bool) { return st.Get(), st.Get().GetExternal() })
}

func TestGate_AChainOfWaitsReadsOnce(t *testing.T) {
	n := setup{cold: true}.start(t)
	n.Status().wait("disk", "connection refused", false)
	st, _ := gated(t, map[string]string{"storage": n.path})
	waitReason(t, st, "waiting for storage: waiting for disk: connection refused for [0-9]+s", "storage")
}

func TestGate_WithoutNeighbours(t *testing.T) {
	_, ready := gated(t, nil)
	<-ready
}

func TestStatus_CountsTheWait(t *testing.T) {
	b := block{reason: "waiting for storage: connection refused", since: time.Unix(100, 0)}
	if got, want := b.text(time.Unix(112, 5)), "waiting for storage: connection refused for 12s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStatus_ExternalOnlyIfEveryCauseIs(t *testing.T) {
	st := NewStatus("x", "")
	if got := st.Get(); got.GetExternal() || got.GetReason() != "starting" {
		t.Errorf("fresh: %v", got)
	}
	st.wait("link", "unreachable", true)
	if got := st.Get(); !got.GetExternal() {
		t.Errorf("starting, and waiting for outside: %v", got)
	}
	st.Block("dns", "no upstream")
	if got := st.Get(); got.GetExternal() {
		t.Errorf("one cause inside: %v", got)
	}
}

func TestStatus_StoppingIsFinal(t *testing.T) {
	st := NewStatus("x", "")
	changed := st.Changed()
	st.Stopping()
	<-changed
	st.SetReady()
	if got := st.Get(); got.GetState() != processv1.ProcessState_PROCESS_STATE_STOPPING || got.GetReason() != "stopping" {
		t.Errorf("got %v", got)
	}
}

func TestBrief(t *testing.T) {
	for in, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial unix /s: connect: connection refused"`: "connection refused",
		"error reading from server: EOF": "connection closed",
		"plain":                          "plain",
	} {
		if got := brief(errors.New(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := brief(nil); got != "connection closed" {
		t.Errorf("nil: %q", got)
	}
}
