package exec

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/logs"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// A life is the one that runs, or one whose end is known.
func TestLifeOf(t *testing.T) {
	state := box()
	state.Status.Exits = []*resourcev1.ContainerExit{{Container: "main", Attempt: 2, Code: 5}, {Container: "other", Attempt: 1}}
	from := func(attempt uint64) *sandboxhostv1.AttachStart {
		return &sandboxhostv1.AttachStart{From: &sandboxhostv1.AttachFrom{Attempt: attempt}}
	}
	if got, err := lifeOf(state, &sandboxhostv1.AttachStart{}); err != nil || got.attempt != 3 || got.over {
		t.Errorf("the one that runs: got %+v, %v", got, err)
	}
	if got, err := lifeOf(state, from(2)); err != nil || got.attempt != 2 || !got.over {
		t.Errorf("one that is over: got %+v, %v", got, err)
	}
	if _, err := lifeOf(state, from(1)); fault.Reason(err) != reasonNotRunning {
		t.Errorf("one that nobody knows: got %v", err)
	}
	if _, err := lifeOf(state, &sandboxhostv1.AttachStart{Stdin: true}); fault.Reason(err) != "NO_STDIN" {
		t.Errorf("input without stdin: got %v", err)
	}
	state.Status.Containers[0].Exit = &resourcev1.ContainerExit{Container: "main", Attempt: 3}
	if _, err := lifeOf(state, &sandboxhostv1.AttachStart{}); fault.Reason(err) != reasonNotRunning {
		t.Errorf("one that has ended: got %v", err)
	}
}

// Input is of one session at a time. One whose caller has lost it makes way for the next of the same.
func TestServer_InputIsOfOne(t *testing.T) {
	s := New(nil, nil, nil, nil)
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	const mine, other = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRY"
	release, err := s.claim(ctx, "c", &sandboxhostv1.AttachStart{InputId: mine}, end)
	if err != nil {
		t.Fatal(err)
	}
	nobody := func(error) {}
	for what, start := range map[string]*sandboxhostv1.AttachStart{
		"another": {InputId: other}, "another that resumes": {InputId: other, Resumed: true}, "the same that begins": {InputId: mine}, "one without id": {},
	} {
		if _, err := s.claim(ctx, "c", start, nobody); fault.Reason(err) != "INPUT_TAKEN" {
			t.Errorf("%s: got %v, want INPUT_TAKEN", what, err)
		}
	}
	go func() { // as its session does
		<-ctx.Done()
		release()
	}()
	again, err := s.claim(t.Context(), "c", &sandboxhostv1.AttachStart{InputId: mine, Resumed: true}, nobody)
	if err != nil || !errors.Is(context.Cause(ctx), errTakenOver) {
		t.Fatalf("the same that goes on: got %v, the one before ended with %v", err, context.Cause(ctx))
	}
	again()
	if len(s.inputs) > 0 {
		t.Errorf("still held: %v", s.inputs)
	}
}

// held is a process that somebody is attached to.
type held struct{ *fakeProcess }

func (h held) Taken() uint64 { return 0 }
func (h held) Close() error  { return h.fakeProcess.Close(context.Background()) }

// outputFunc keeps the output of one.
type outputFunc func(ctx context.Context, emit func(logs.Chunk) error) error

func (f outputFunc) Read(ctx context.Context, _ logs.Position, _ logs.Mode, emit func(logs.Chunk) error) error {
	return f(ctx, emit)
}

// Nobody is told to be attached, and nothing that he sends is taken, before it is known where the tail
// begins: what the process makes of it would be left out of a short one. Where it is known there is no wait.
func TestServer_TakesNothingBeforeItKnowsWhereToBegin(t *testing.T) {
	for what, start := range map[string]*sandboxhostv1.AttachStart{
		"a tail": {}, "a place": {From: &sandboxhostv1.AttachFrom{Attempt: 3, StdoutOffset: 7}},
	} {
		synctest.Test(t, func(t *testing.T) {
			found := make(chan struct{})
			s := New(oneSandbox{box()}, nil, outputFunc(func(ctx context.Context, emit func(logs.Chunk) error) error {
				<-found
				if err := emit(logs.Chunk{Offset: 7}); err != nil {
					return err
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}), slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancelCause(t.Context())
			w := newWire[*sandboxhostv1.AttachRequest, *sandboxhostv1.AttachResponse](ctx)
			main, result := held{newFake(false)}, make(chan error, 1)
			main.mute = true
			go func() { result <- s.goAlong(ctx, cancel, w, main, life{container: "main"}, start) }() // ends with ctx
			var taken atomic.Bool
			go func() { // ends with the session
				w.up <- &sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Signal{Signal: uint32(syscall.SIGINT)}}
				taken.Store(true)
			}()
			synctest.Wait()
			begun := false
			select {
			case m := <-w.down:
				begun = m.GetStarted() != nil
				synctest.Wait()
			default:
			}
			if want := start.GetFrom() != nil; begun != want || taken.Load() != want {
				t.Errorf("%s: attached is %v and a signal taken %v before the tail is found, want %v", what, begun, taken.Load(), want)
			}
			close(found)
			if m := <-w.down; !begun && m.GetStarted() == nil {
				t.Errorf("%s: got %v first", what, m)
			}
			synctest.Wait()
			if !taken.Load() {
				t.Errorf("%s: nothing is taken of one who is attached", what)
			}
			end := errors.New("he goes")
			cancel(end)
			if err := <-result; !errors.Is(err, end) {
				t.Errorf("%s: it ended with %v", what, err)
			}
			s.pumps.Wait()
		})
	}
}

// The end of a process is told as it was, and why where that was not its own doing.
func TestToldExit(t *testing.T) {
	of := life{container: "main"}
	for what, c := range map[string]struct {
		change func(*sandboxhostv1.SandboxState, *resourcev1.ContainerExit)
		reason string
	}{
		"by itself": {func(*sandboxhostv1.SandboxState, *resourcev1.ContainerExit) {}, ""},
		"memory": {func(_ *sandboxhostv1.SandboxState, e *resourcev1.ContainerExit) { e.OomKilled = true },
			"it was ended for using more memory than the limit of its container"},
		"stopped": {func(s *sandboxhostv1.SandboxState, _ *resourcev1.ContainerExit) {
			s.Spec.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED
		}, "its sandbox was stopped"},
		"removed": {func(s *sandboxhostv1.SandboxState, _ *resourcev1.ContainerExit) { s.Removing = true }, "its sandbox was removed"},
		"drained": {func(s *sandboxhostv1.SandboxState, _ *resourcev1.ContainerExit) { s.Held = true }, "its node is drained"},
	} {
		state, exit := box(), &resourcev1.ContainerExit{Code: 3}
		c.change(state, exit)
		if got, err := toldExit(state, exit, of); err != nil || got.GetCode() != 3 || got.GetReason() != c.reason {
			t.Errorf("%s: got %v, %v", what, got, err)
		}
	}
	if _, err := toldExit(box(), &resourcev1.ContainerExit{Unknown: true}, of); fault.Reason(err) != reasonExitUnknown {
		t.Errorf("unknown: got %v", err)
	}
}
