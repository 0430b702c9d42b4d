package session

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// up is what goes to the other side. Its methods may be called by many goroutines at once; that
// the other side has ended is no error: its reason is what is heard.
type up interface {
	stdin(b []byte) error
	stdinEnd() error
	resize(size *sandboxhostv1.TerminalSize) error
	signal(number uint32) error
}

// person is the one at this side: what she sends.
type person struct {
	input   *backlog
	sizes   <-chan *sandboxhostv1.TerminalSize
	signals <-chan os.Signal
}

// read takes in her input beside what comes in. A read ends with this program; where it breaks
// off, fail is called.
func (p *person) read(ctx context.Context, input io.Reader, fail context.CancelCauseFunc) {
	go func() { // ends with ctx, or the input
		if err := p.input.fill(ctx, input); err != nil {
			fail(&inputError{err})
		}
	}()
}

// pump sends input from an offset on to its end, beside what comes in.
func (p *person) pump(ctx context.Context, to up, offset uint64) {
	go func() { // ends with ctx
		buf := make([]byte, chunk)
		for {
			n, err := p.input.next(ctx, offset, buf)
			if errors.Is(err, io.EOF) {
				_ = to.stdinEnd() // what is heard says why
				return
			}
			if err != nil || to.stdin(buf[:n]) != nil {
				return // the same
			}
			offset += uint64(n)
		}
	}()
}

// watch sends signals and sizes, beside what comes in.
func (p *person) watch(ctx context.Context, to up) {
	go func() { // ends with ctx
		var err error
		for err == nil { // else what is heard says why
			select {
			case size := <-p.sizes:
				err = to.resize(size)
			case signal := <-p.signals:
				err = to.signal(numberOf(signal))
			case <-ctx.Done():
				return
			}
		}
	}()
}

// sender sends messages one at a time.
type sender[M any] struct {
	mu     sync.Mutex // held while a message is sent
	stream interface{ Send(m M) error }
}

func (s *sender[M]) send(m M) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.stream.Send(m)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type execUp struct {
	sender[*sandboxhostv1.ExecRequest]
}

func (u *execUp) stdin(b []byte) error {
	return u.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Stdin{Stdin: b}})
}

func (u *execUp) stdinEnd() error {
	return u.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_StdinEnd{StdinEnd: true}})
}

func (u *execUp) resize(size *sandboxhostv1.TerminalSize) error {
	return u.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Resize{Resize: size}})
}

func (u *execUp) signal(number uint32) error {
	return u.send(&sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Signal{Signal: number}})
}

type attachUp struct {
	sender[*sandboxhostv1.AttachRequest]
}

func (u *attachUp) stdin(b []byte) error {
	return u.send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Stdin{Stdin: b}})
}

func (u *attachUp) stdinEnd() error {
	return u.send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_StdinEnd{StdinEnd: true}})
}

func (u *attachUp) resize(size *sandboxhostv1.TerminalSize) error {
	return u.send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Resize{Resize: size}})
}

func (u *attachUp) signal(number uint32) error {
	return u.send(&sandboxhostv1.AttachRequest{Frame: &sandboxhostv1.AttachRequest_Signal{Signal: number}})
}
