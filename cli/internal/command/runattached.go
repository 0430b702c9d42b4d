package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/run"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/session"
	"staddle.internal/cli/internal/target"
)

func (a *app) runAttached(ctx context.Context, t sandboxes, o runOptions, labels map[string]string, spec *resourcev1.SandboxSpec) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	host, err := settings.Node(ctx)
	if err != nil {
		return exit.Try(err, "staddle run --detach, which needs no socket of the node")
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	// An interrupt must not leave it unknown whether there is a sandbox now.
	s, err := t.Create(context.WithoutCancel(ctx), o.name, labels, spec)
	if err != nil {
		return err
	}
	if o.remove {
		defer func() { err = errors.Join(err, a.removeAfter(ctx, t, s)) }()
	}
	if err := a.attach(ctx, t, host, s); err != nil {
		return leaveStopped(ctx, t, s, err)
	}
	return a.endOf(ctx, host, s)
}

// attach shows the output from the start of the sandbox to its end for good. An
// interrupt is passed on as a wish to stop, and the output is shown to its end.
func (a *app) attach(ctx context.Context, t sandboxes, host *target.Node, s sandbox.Sandbox) error {
	now, err := a.untilStarted(ctx, t, s)
	if err != nil || failedInit(now) != nil { // then there is no output to show
		return err
	}
	if _, err := host.Get(ctx, s.UID); fault.KindOf(err) == fault.NotFound {
		return elsewhere(ctx, t, s)
	}
	following, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	watcherDone := make(chan struct{})
	stderr := &shared{w: a.err}
	go func() { // owned by this call, which waits for it below
		defer close(watcherDone)
		passOn(ctx, t, s, stderr, done, leave)
	}()
	err = a.show(following, host, s, follow.Output{Stdout: a.out, Stderr: stderr})
	close(done)
	<-watcherDone
	leave(nil)
	if cause := context.Cause(ctx); cause != nil && err == nil {
		return cause
	}
	return err
}

// show shows the output of all lives. To the first, input goes if it has any.
func (a *app) show(ctx context.Context, host *target.Node, s sandbox.Sandbox, out follow.Output) error {
	request := follow.Request{UID: s.UID, Container: mainContainer, Attempt: 1, Follow: true}
	if c := containerSpecOf(&s, mainContainer); c.GetStdin() || c.GetTty() {
		_, err := a.goAlong(ctx, host.Inside().Exec, c, session.AttachRequest{
			Start:  &sandboxhostv1.AttachStart{Uid: s.UID, Container: mainContainer, From: &sandboxhostv1.AttachFrom{Attempt: 1}, Stdin: c.GetStdin()},
			Stdout: out.Stdout, Stderr: out.Stderr,
		}, nil)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return fmt.Errorf("attach to sandbox %s: %w", s.Name, err)
		}
		request.Attempt++
	}
	return follow.Run(ctx, host, request, out)
}

// passOn turns the first interrupt into a wish to stop, and the second into the
// end of following.
func passOn(ctx context.Context, t writer, s sandbox.Sandbox, tell io.Writer, done <-chan struct{}, leave context.CancelCauseFunc) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(again)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCall)
	defer cancel()
	if _, err := t.Update(bound, s.UID, wantStopped); err != nil {
		leave(err)
		return
	}
	if _, err := fmt.Fprintf(tell, "staddle: asked %s to stop; interrupt again to leave it alone\n", s.Name); err != nil {
		leave(err)
		return
	}
	select {
	case <-done:
	case <-again:
		leave(context.Cause(ctx))
	}
}

// shared lets two goroutines write to one stream, each write whole.
type shared struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// leaveStopped ends a foreground run that did not come to its end: the sandbox
// must not go on, or start after all, unseen.
func leaveStopped(ctx context.Context, t writer, s sandbox.Sandbox, err error) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCall)
	defer cancel()
	_, stopErr := t.Update(bound, s.UID, wantStopped)
	if stopErr != nil && fault.KindOf(stopErr) != fault.NotFound {
		return errors.Join(err, stopErr)
	}
	if cause, ok := errors.AsType[*run.SignalError](context.Cause(ctx)); ok {
		return cause
	}
	return err
}

func wantStopped(spec *resourcev1.SandboxSpec) {
	spec.Desired = resourcev1.DesiredState_DESIRED_STATE_STOPPED
}

func wantRunning(spec *resourcev1.SandboxSpec) {
	spec.Desired = resourcev1.DesiredState_DESIRED_STATE_RUNNING
}

func (a *app) removeAfter(ctx context.Context, t sandboxes, s sandbox.Sandbox) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit(s))
	defer cancel()
	return a.removeOne(bound, t, s, removal{wait: true})
}

// endOf turns the end of the container into the end of the command.
func (a *app) endOf(ctx context.Context, host *target.Node, s sandbox.Sandbox) error {
	now, err := host.Get(ctx, s.UID)
	if fault.KindOf(err) == fault.NotFound {
		return fault.New(fault.NotFound, "run sandbox %s: it was removed", s.Name)
	}
	if err != nil {
		return err
	}
	e := now.Exit(mainContainer)
	if init := failedInit(&now); e == nil && init != nil {
		output.NewProgress(a.err).Say(fmt.Sprintf("staddle: init container %s ended with code %s; its output: staddle logs %s --container %s",
			init.GetContainer(), codeOf(init), s.Name, init.GetContainer()))
		e = init
	}
	switch {
	case e == nil:
		why, _ := now.Failed()
		return failedStart(&now, why)
	case e.GetUnknown():
		return fault.New(fault.Internal, "run sandbox %s: its container ended, and nobody could tell how", s.Name)
	case e.GetOomKilled():
		output.NewProgress(a.err).Say("staddle: " + s.Name + " used more memory than its limit and was ended")
	}
	return exit.WithCode(int(e.GetCode()))
}

// failedInit is the end of the init container that kept the others from starting, nil if
// none did.
func failedInit(s *sandbox.Sandbox) *resourcev1.ContainerExit {
	for _, c := range s.Spec.GetContainers() {
		if e := s.Exit(c.GetName()); c.GetInit() && e != nil && (e.GetCode() != 0 || e.GetUnknown()) {
			return e
		}
	}
	return nil
}

// elsewhere says where the output is that cannot be had here.
func elsewhere(ctx context.Context, t reader, s sandbox.Sandbox) error {
	now, err := t.Get(ctx, s.UID)
	if err != nil {
		return err
	}
	if now.Node == "" {
		return fault.New(fault.Unavailable, "read logs of sandbox %s: it has no node yet: %s", s.Name, stateOf(&now))
	}
	return exit.Try(fault.New(fault.Unavailable, "read logs of sandbox %s: it is on node %s, which keeps them", s.Name, now.Node),
		"on that node: staddle --node-socket /run/staddle/sandboxhost.sock logs %s", s.UID)
}
