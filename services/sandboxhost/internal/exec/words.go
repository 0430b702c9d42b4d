package exec

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// chunk is how much is moved at a time.
	chunk = 32 << 10
	// askLimit bounds a signal or a new size: longer than containerd takes to start anew.
	askLimit = 20 * time.Second
)

// target is what a session hands words to.
type target interface {
	EndStdin(ctx context.Context) error
	Resize(ctx context.Context, size engine.TerminalSize) error
	Signal(ctx context.Context, signal syscall.Signal) error
}

// word is what a caller says behind the start.
type word struct {
	input  bool   // stdin counts
	stdin  []byte // more of it
	end    bool   // of the input
	resize *sandboxhostv1.TerminalSize
	signal syscall.Signal
}

// words are the parts that the messages of all sessions have.
type words interface {
	GetStdin() []byte
	GetStdinEnd() bool
	GetResize() *sandboxhostv1.TerminalSize
	GetSignal() uint32
}

// wordOf reads a message; the zero word is none of those that may be said.
func wordOf[M words](m M, err error) (word, error) {
	if err != nil {
		return word{}, err
	}
	return word{m.GetStdin() != nil, m.GetStdin(), m.GetStdinEnd(), m.GetResize(), syscall.Signal(m.GetSignal())}, nil
}

// session is one call with its process.
type session struct {
	recv   func() (word, error) // io.EOF when the caller says no more
	silent func()               // is called then; nil for nothing
	taken  func(uint64) error   // tells the caller how much input was taken
	target target
	stdin  io.Writer // nil for none
	cancel context.CancelCauseFunc
	inbox  *inbox

	mu   sync.Mutex // held while a message is sent: a stream takes one at a time
	over bool       // nothing is sent any more; guarded by mu
}

// errOver is why a message was not sent.
var errOver = errors.New("the session is over")

func newSession(t target, stdin io.Writer, cancel context.CancelCauseFunc) *session {
	return &session{target: t, stdin: stdin, cancel: cancel, inbox: newInbox()}
}

// send calls fn, which sends a message, unless the session is over.
func (t *session) send(fn func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return errOver
	}
	return fn()
}

// close makes the message before it the last one.
func (t *session) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// hear does what the caller says, until the caller says no more. One who goes ends
// the session.
func (t *session) hear(ctx context.Context) {
	over := false // the input
	for {
		w, err := t.recv()
		if errors.Is(err, io.EOF) {
			if t.silent != nil {
				t.silent()
			}
			return
		}
		if err == nil {
			err = t.obey(ctx, w, &over)
		}
		if err != nil {
			t.cancel(err)
			return
		}
	}
}

func (t *session) obey(ctx context.Context, w word, over *bool) error {
	switch {
	case w.input && t.stdin == nil:
		return fault.New(fault.Invalid, "stdin: start does not say that there is any; set start.stdin")
	case w.input && *over:
		return fault.New(fault.Invalid, "stdin: it is at its end already")
	case w.input:
		return t.inbox.put(ctx, w.stdin)
	case w.end:
		*over = true
		t.inbox.end()
		return nil
	case w.resize != nil:
		return ask(ctx, func(ctx context.Context) error { return t.target.Resize(ctx, sizeOf(w.resize)) })
	case w.signal != 0:
		return ask(ctx, func(ctx context.Context) error { return t.target.Signal(ctx, w.signal) })
	}
	return fault.New(fault.Invalid, "a second start: a stream has one")
}

// ask asks the engine for something, again for a while when it cannot be asked.
func ask(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for try := 1; ; try++ {
		err := fn(ctx)
		if !errors.Is(err, fault.Unavailable) || backoff.Wait(ctx, closeAgain.Delay(try, rand.Float64())) != nil {
			return err
		}
	}
}

// feed hands input on, and says how much of it was taken, with what was before. What nobody reads any more
// is dropped.
func (t *session) feed(ctx context.Context, taken uint64) {
	buf := make([]byte, chunk)
	broken := false
	for {
		n, err := t.inbox.take(ctx, buf)
		if errors.Is(err, io.EOF) {
			if err := ask(ctx, t.target.EndStdin); err != nil && !broken {
				t.cancel(err)
			}
			return
		}
		if err != nil {
			return // the session is over
		}
		if !broken {
			_, err := t.stdin.Write(buf[:n])
			broken = errors.Is(err, syscall.EPIPE)
			if err != nil && !broken {
				t.cancel(err)
				return
			}
		}
		taken += uint64(n)
		if t.taken(taken) != nil {
			return // the same
		}
	}
}
