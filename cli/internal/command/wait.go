package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// limit is how long a command may take when --timeout does not say.
type limit = time.Duration

// Limits of the commands that wait for a sandbox.
const (
	waitRunning limit = 5 * time.Minute // an image may have to come over a slow line
	waitStopped limit = 2 * time.Minute
	// waitRelease is for a disk that its last holder gives back.
	waitRelease limit = 30 * time.Second
	// graceCall bounds what is still done after the command was interrupted.
	graceCall limit = 15 * time.Second
)

// away is how long a target that was reached once may be away.
const away = 30 * time.Second

// held is how long a call lasts that has reached its target. When it breaks off, the
// target has been away since then, and not since it last said something.
const held = time.Second

var reconnect = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 2 * time.Second}

// reader is the half of a target that changes nothing.
type reader interface {
	List(ctx context.Context) ([]sandbox.Sandbox, error)
	Find(ctx context.Context, ref string) (sandbox.Sandbox, error)
	Get(ctx context.Context, uid string) (sandbox.Sandbox, error)
	Watch(ctx context.Context, uid string, emit func(sandbox.Event) error) error
}

// writer is the half that does.
type writer interface {
	Create(ctx context.Context, name string, labels map[string]string, spec *resourcev1.SandboxSpec) (sandbox.Sandbox, error)
	Update(ctx context.Context, uid string, change func(*resourcev1.SandboxSpec)) (sandbox.Sandbox, error)
	Remove(ctx context.Context, s sandbox.Sandbox, lost bool) error
	Forget(ctx context.Context, s sandbox.Sandbox, lost bool) error
}

// sandboxes is a target as the sandbox commands use it.
type sandboxes interface {
	reader
	writer
	io.Closer
}

// connect reaches the target that the flags name.
func connect(ctx context.Context, s *target.Settings) (sandboxes, error) {
	if s.Direct {
		return s.Node(ctx)
	}
	return s.Cluster(ctx)
}

// withSandboxes runs fn with the target of this invocation.
func (a *app) withSandboxes(ctx context.Context, fn func(sandboxes) error) (err error) {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	t, err := connect(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	return fn(t)
}

var errEnough = errors.New("seen enough")

// await looks at a sandbox now and at each change until see says enough, and
// outlives a restart of the target. see gets nil once the sandbox is gone. When
// the context ends first, the error names the last state.
func await(ctx context.Context, from reader, s sandbox.Sandbox, see func(*sandbox.Sandbox) (bool, error)) error {
	last := s
	since := time.Now()
	for tries := 1; ; tries++ {
		began := time.Now()
		err := watchOne(ctx, from, s.UID, func(now *sandbox.Sandbox) (bool, error) {
			tries, since = 1, time.Now()
			if now != nil && now.Generation < s.Generation {
				return false, nil // from before the change that is waited for
			}
			if now != nil {
				last = *now
			}
			return see(now)
		})
		if time.Since(began) > held {
			tries, since = 1, time.Now()
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fault.New(fault.Unavailable, "wait for sandbox %s: not there in time: %s", s.Name, stateOf(&last))
		case ctx.Err() != nil, fault.KindOf(err) != fault.Unavailable, time.Since(since) > away:
			return err
		}
		if waitErr := backoff.Wait(ctx, reconnect.Delay(tries, 0.5)); waitErr != nil && !errors.Is(waitErr, context.DeadlineExceeded) {
			return waitErr
		}
	}
}

func watchOne(ctx context.Context, from reader, uid string, see func(*sandbox.Sandbox) (bool, error)) error {
	seen := false
	err := from.Watch(ctx, uid, func(e sandbox.Event) error {
		now := e.Sandbox
		switch {
		case now == nil && seen:
			return nil // the mark, after it was sent
		case now == nil:
			var err error
			if now, err = confirm(ctx, from, uid); err != nil {
				return err
			}
		case e.Gone:
			now = nil
		}
		seen = true
		enough, err := see(now)
		if err == nil && enough {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// confirm asks for a sandbox that was not among those that a watch began with:
// the copy that serves a watch may be older than the sandbox. Nil means gone.
func confirm(ctx context.Context, from reader, uid string) (*sandbox.Sandbox, error) {
	s, err := from.Get(ctx, uid)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// stateOf is a sandbox's state in one line.
func stateOf(s *sandbox.Sandbox) string {
	phase := phaseOf(s)
	if why := s.Why(); why != "" {
		return fmt.Sprintf("%s: %s", phase, why)
	}
	return phase
}
