// Package follow owns reading the output of a container until there is no more
// to come.
//
// It goes through the attempts of a sandbox one by one, each from the first byte
// that was not shown yet, so that a restart of the host neither loses nor
// repeats output, and standard output and standard error stay apart. It must
// never decide how a sandbox lives; it only asks when its output is over. In the
// trail it is the end of "staddle logs" and of "staddle run".
package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/sandbox"
)

// away is how long a host may be away before following gives up.
const away = 60 * time.Second

// held is how long a call lasts that has reached its host. When it breaks off, the host
// has been away since then, and not since it last said something.
const held = time.Second

// retry spaces the tries to reach a host that is away.
var retry = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 2 * time.Second}

// Host is what following needs of a node.
type Host interface {
	Get(ctx context.Context, uid string) (sandbox.Sandbox, error)
	Watch(ctx context.Context, uid string, emit func(sandbox.Event) error) error
	Logs(ctx context.Context, req *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error
}

// Output is where the bytes go.
type Output struct {
	Stdout, Stderr io.Writer
	// Lines shows whole lines as it says, in place of bytes as they come.
	Lines *Format
	// Turn is taken for each line. Nil means that nobody else writes to Stdout or Stderr.
	Turn *sync.Mutex
}

// Request says what to read.
type Request struct {
	UID, Container string
	// Name of the sandbox, in place of UID, if it was removed.
	Name string
	// Removed says that the sandbox was removed: there is an end, and nothing to follow.
	Removed bool
	// Attempt to read, or to begin with when following. 0 means the newest.
	Attempt uint64
	// Only limits what is read to one stream.
	Only sandboxhostv1.LogStream
	// Follow goes on until the sandbox has come to rest or is gone.
	Follow bool
	// Previous reads the newest attempt before the present one. Not with Attempt or Follow.
	Previous bool
	// Since leaves out what came before. Zero leaves out nothing.
	Since time.Time
	// Tail leaves out all but the last lines. Nil leaves out nothing.
	Tail *uint32
}

// reader is one reading with its position.
type reader struct {
	host           Host
	req            Request
	out            Output
	attempt        uint64
	stdout, stderr int64
	begun          bool      // it is known where the reading begins: it goes on from there
	lines          [2]*lines // of stdout and stderr, if whole lines are shown
	rereads        int       // of this attempt, after there was nothing to read
}

// maxRereads bounds how often an attempt is read again that had started and yet
// had no output: its output may be gone for good.
const maxRereads = 5

// Run reads as req says. When following it outlives restarts of the host, and
// returns nil once the sandbox has come to rest or is gone and all was shown.
func Run(ctx context.Context, host Host, req Request, out Output) error {
	req.Follow = req.Follow && !req.Removed
	r := &reader{host: host, req: req, out: out, attempt: req.Attempt}
	if f := out.Lines; f != nil {
		turn := out.Turn
		if turn == nil {
			turn = &sync.Mutex{}
		}
		r.lines = [2]*lines{
			{format: *f, stream: "stdout", mu: turn, to: out.Stdout},
			{format: *f, stream: "stderr", mu: turn, to: out.Stderr},
		}
	}
	err := r.run(ctx)
	return errors.Join(err, r.flush())
}

func (r *reader) run(ctx context.Context) error {
	if !r.req.Follow {
		err := r.read(ctx)
		if errors.Is(err, errNothing) && r.req.Attempt == 0 && !r.req.Previous && !r.req.Removed {
			return nil // it has not written anything yet
		}
		return err
	}
	if r.attempt == 0 {
		s, err := r.host.Get(ctx, r.req.UID)
		if err != nil {
			return err
		}
		r.attempt = s.Status.GetAttempt()
	}
	return r.follow(ctx)
}

// flush shows the ends of lines that have none.
func (r *reader) flush() error {
	var errs []error
	for _, l := range r.lines {
		if l != nil {
			errs = append(errs, l.flush())
		}
	}
	return errors.Join(errs...)
}

func (r *reader) follow(ctx context.Context) error {
	tries, since := 0, time.Now()
	for {
		began := time.Now()
		over, err := r.step(ctx)
		if time.Since(began) > held {
			tries, since = 0, time.Now()
		}
		switch {
		case over:
			return err
		case err == nil:
			tries, since = 0, time.Now()
		case fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil || time.Since(since) > away:
			return err
		default:
			tries++
			if waitErr := backoff.Wait(ctx, retry.Delay(tries, 0.5)); waitErr != nil {
				return waitErr
			}
		}
	}
}

// step shows the rest of one attempt and waits for the next one.
func (r *reader) step(ctx context.Context) (over bool, err error) {
	if r.rereads > 0 {
		if err := backoff.Wait(ctx, retry.Delay(r.rereads, 0.5)); err != nil {
			return true, err
		}
	}
	err = r.read(ctx)
	nothing, cut := errors.Is(err, errNothing), fault.KindOf(err) == fault.Conflict // given up while it was read
	if err != nil && !nothing && !cut {
		return false, err
	}
	over, nextErr := r.next(ctx, nothing)
	switch {
	case !cut:
		return over, nextErr
	case over || nextErr != nil:
		return true, errors.Join(err, nextErr)
	}
	return false, r.tell("staddle: " + err.Error() + "\n") // and on with the next attempt
}

// next waits until the attempt at hand can be read after all, or there is a
// newer one, or nothing more is to come.
func (r *reader) next(ctx context.Context, unread bool) (over bool, err error) {
	seen := false
	err = r.host.Watch(ctx, r.req.UID, func(e sandbox.Event) error {
		if e.Sandbox == nil {
			over = !seen // synced without it: the sandbox is gone
			return stopIf(over)
		}
		seen = true
		s := e.Sandbox
		switch {
		case e.Gone:
			over = true
		case unread && started(s, r.attempt, r.req.Container) && r.rereads < maxRereads:
			r.rereads++
		case s.Status.GetAttempt() > r.attempt:
			if err := r.flush(); err != nil {
				return err
			}
			r.attempt, r.stdout, r.stderr, r.rereads, r.begun = r.attempt+1, 0, 0, 0, true
		case s.AtRest():
			over = true
		default:
			return nil
		}
		return errStop
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	return over, err
}

// started reports whether the container was started in this attempt, so that its
// output can be read though it could not a moment ago.
func started(s *sandbox.Sandbox, attempt uint64, container string) bool {
	if s.Status.GetAttempt() != attempt {
		return false
	}
	for _, c := range s.Status.GetContainers() {
		if (container == "" || c.GetName() == container) && c.GetStartedAt() != nil {
			return true
		}
	}
	return false
}

var (
	errStop    = errors.New("seen enough")
	errNothing = errors.New("no output is kept of this attempt")
)

func stopIf(stop bool) error {
	if stop {
		return errStop
	}
	return nil
}

// read shows what there is of one attempt from the position on.
func (r *reader) read(ctx context.Context) error {
	if r.attempt == 0 && r.req.Follow {
		return errNothing
	}
	req := &sandboxhostv1.ReadLogsRequest{
		Uid: r.req.UID, Name: r.req.Name, Container: r.req.Container, Attempt: r.attempt, Stream: r.req.Only, Follow: r.req.Follow,
		StdoutOffset: r.stdout, StderrOffset: r.stderr, Timed: r.out.Lines != nil, Previous: r.req.Previous,
	}
	if !r.begun {
		req.TailLines = r.req.Tail
		if !r.req.Since.IsZero() {
			req.Since = timestamppb.New(r.req.Since)
		}
	}
	err := r.host.Logs(ctx, req, r.show)
	if fault.KindOf(err) == fault.NotFound {
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	return err
}

// show writes a chunk and moves the position behind it. A gap is said on
// standard error: what lay there is not kept any more.
func (r *reader) show(chunk *sandboxhostv1.ReadLogsResponse) error {
	to, at, name, l := r.out.Stdout, &r.stdout, "stdout", r.lines[0]
	if chunk.GetStream() == sandboxhostv1.LogStream_LOG_STREAM_STDERR {
		to, at, name, l = r.out.Stderr, &r.stderr, "stderr", r.lines[1]
	}
	if len(chunk.GetData()) == 0 { // where the reading begins
		*at = chunk.GetOffset()
		r.begun = r.begun || r.req.Only != both || name == "stderr"
		return nil
	}
	r.begun = true
	if lost := chunk.GetOffset() - *at; lost > 0 {
		if err := r.tell(fmt.Sprintf("staddle: %d bytes of %s are not kept any more\n", lost, name)); err != nil {
			return err
		}
	}
	*at = chunk.GetOffset() + int64(len(chunk.GetData()))
	if l != nil {
		return l.write(chunk)
	}
	if _, err := to.Write(chunk.GetData()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

const both = sandboxhostv1.LogStream_LOG_STREAM_UNSPECIFIED

// tell says something about the output on standard error.
func (r *reader) tell(text string) error {
	if l := r.lines[1]; l != nil {
		text = l.format.Prefix + text
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	_, err := io.WriteString(r.out.Stderr, text)
	return err
}
