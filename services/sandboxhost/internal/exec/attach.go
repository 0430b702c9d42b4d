package exec

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inlet"
	"staddle.internal/services/sandboxhost/internal/logs"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Attach goes along with one life of a main process.
func (s *Server) Attach(stream grpc.BidiStreamingServer[sandboxhostv1.AttachRequest, sandboxhostv1.AttachResponse]) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "there is no start")
	}
	if err != nil {
		return err
	}
	start := first.GetStart()
	if err := checkAttach(start); err != nil {
		return err
	}
	state, err := s.host.Get(id.Sandbox(start.GetUid()))
	if err != nil {
		return err
	}
	of, err := lifeOf(state, start)
	if err != nil {
		return err
	}
	if err := s.enter(&s.attached, of.uid); err != nil {
		return err
	}
	defer s.pumps.Done()
	defer s.count(&s.attached, of.uid, -1)
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	if start.GetStdin() && !of.over {
		release, err := s.claim(ctx, of.containerID, start, cancel)
		if err != nil {
			return err
		}
		defer release()
	}
	main, err := s.hold(ctx, start, &of)
	if err != nil {
		return err
	}
	s.log.Info("attached", of.uid.Attr(), logging.Component(of.containerID), logging.Attempt(int64(of.attempt)))
	err = s.goAlong(ctx, cancel, stream, main, of, start)
	return errors.Join(err, main.Close())
}

// hold takes hold of the main process, which may have ended since it was looked for.
func (s *Server) hold(ctx context.Context, start *sandboxhostv1.AttachStart, of *life) (engine.Attached, error) {
	m := engine.Main{UID: of.uid, ContainerID: of.containerID, Terminal: of.terminal}
	if start.GetStdin() && !of.over {
		m.Input = &inlet.Input{ID: start.GetInputId(), Resumed: start.GetResumed()}
	}
	main, err := s.runtime.Attach(ctx, m)
	if fault.Reason(err) == reasonNotRunning && start.GetFrom() != nil {
		of.over, m.Input = true, nil
		return s.runtime.Attach(ctx, m)
	}
	return main, err
}

// goAlong goes through one session, from its start to the end of the life.
func (s *Server) goAlong(
	ctx context.Context, cancel context.CancelCauseFunc, stream grpc.BidiStreamingServer[sandboxhostv1.AttachRequest, sandboxhostv1.AttachResponse],
	main engine.Attached, of life, start *sandboxhostv1.AttachStart,
) error {
	t := newSession(main, inputOf(main, start, of), cancel)
	defer t.close()
	send := func(m *sandboxhostv1.AttachResponse) error { return t.send(func() error { return stream.Send(m) }) }
	t.recv = func() (word, error) { return wordOf(stream.Recv()) }
	t.taken = func(n uint64) error {
		return send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_StdinTaken{StdinTaken: n}})
	}
	if size := start.GetSize(); size != nil && !of.over {
		if err := ask(ctx, func(ctx context.Context) error { return main.Resize(ctx, sizeOf(size)) }); err != nil {
			return err
		}
	}
	begin := sync.OnceValue(func() error { return s.begin(ctx, t, main, of, send) })
	if start.GetFrom() != nil {
		if err := begin(); err != nil {
			return err
		}
	}
	err := s.show(ctx, of, start, func(m *sandboxhostv1.AttachResponse) error {
		if err := begin(); err != nil { // where the tail begins is known: what comes by input or a signal is behind that
			return err
		}
		return send(m)
	})
	if err != nil {
		return err
	}
	exit, err := s.endOf(ctx, of)
	if err != nil {
		return err
	}
	return send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Exit{Exit: exit}})
}

// begin tells the caller that he is attached, and takes what he sends from now on.
func (s *Server) begin(ctx context.Context, t *session, main engine.Attached, of life, send func(*sandboxhostv1.AttachResponse) error) error {
	err := send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Started{
		Started: &sandboxhostv1.AttachStarted{Attempt: of.attempt, StdinTaken: main.Taken(), Ended: of.over},
	}})
	if err != nil {
		return err
	}
	// Both end with the stream, or when the hold is closed; Run waits for them.
	s.pumps.Go(func() { t.hear(ctx) })
	if t.stdin != nil {
		s.pumps.Go(func() { t.resume(ctx, main.Taken()) })
	}
	return nil
}

// resume hands on what an earlier session has left on its way, and then the input of this one.
func (t *session) resume(ctx context.Context, taken uint64) {
	if _, err := t.stdin.Write(nil); err != nil {
		t.cancel(err)
		return
	}
	t.feed(ctx, taken)
}

// inputOf is where the caller's input goes, nil if there is none.
func inputOf(main engine.Attached, start *sandboxhostv1.AttachStart, of life) io.Writer {
	if start.GetStdin() && of.over {
		return io.Discard
	}
	return main.Stdin()
}

// show sends the output, until no more comes.
func (s *Server) show(ctx context.Context, of life, start *sandboxhostv1.AttachStart, send func(*sandboxhostv1.AttachResponse) error) error {
	at, mode := reading(of, start)
	err := s.output.Read(ctx, at, mode, func(c logs.Chunk) error {
		o := &sandboxhostv1.AttachOutput{Offset: c.Offset, Data: c.Data}
		if c.Stderr {
			return send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Stderr{Stderr: o}})
		}
		return send(&sandboxhostv1.AttachResponse{Frame: &sandboxhostv1.AttachResponse_Stdout{Stdout: o}})
	})
	if fault.KindOf(err) == fault.NotFound && of.over { // its output is not kept any more
		return nil
	}
	return err
}

// endOf waits for the end of a life.
func (s *Server) endOf(ctx context.Context, of life) (*sandboxhostv1.ExecExit, error) {
	for ctx.Err() == nil { // one that falls behind is cut off, and looks again
		state, over := s.untilOver(ctx, of)
		if exit := exitOf(state.GetStatus(), of); exit != nil {
			return toldExit(state, exit, of)
		}
		if over {
			return nil, errNobodyKnows(of)
		}
	}
	return nil, context.Cause(ctx)
}

// untilOver returns the state that tells how a life has ended, or over when no state ever will.
func (s *Server) untilOver(ctx context.Context, of life) (_ *sandboxhostv1.SandboxState, over bool) {
	there := false
	for ev := range s.host.States().Subscribe(ctx) {
		if ev.Kind == watch.Synced && !there {
			return nil, true
		}
		if ev.Kind == watch.Synced || ev.Key != of.uid {
			continue
		}
		there = true
		status := ev.Value.GetStatus()
		if exitOf(status, of) != nil {
			return ev.Value, false
		}
		if ev.Kind == watch.Deleted || status.GetAttempt() > of.attempt || status.GetTornDownAt() != nil {
			return nil, true
		}
	}
	return nil, false
}

func errNobodyKnows(of life) error {
	return fault.WithReason(fault.New(fault.Unavailable, "sandbox %s: nobody can tell how container %s ended in attempt %d",
		of.uid, of.container, of.attempt), reasonExitUnknown)
}

// toldExit is what the caller is told of an exit.
func toldExit(state *sandboxhostv1.SandboxState, exit *resourcev1.ContainerExit, of life) (*sandboxhostv1.ExecExit, error) {
	told := &sandboxhostv1.ExecExit{Code: exit.GetCode()}
	stopped := state.GetStatus().GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING ||
		state.GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED
	switch {
	case exit.GetUnknown():
		return nil, errNobodyKnows(of)
	case exit.GetOomKilled():
		told.Reason = "it was ended for using more memory than the limit of its container"
	case state.GetRemoving(), state.GetStatus().GetTornDownAt() != nil:
		told.Reason = "its sandbox was removed"
	case state.GetHeld():
		told.Reason = "its node is drained"
	case stopped:
		told.Reason = "its sandbox was stopped"
	}
	return told, nil
}
