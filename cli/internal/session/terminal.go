package session

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Terminal returns the terminal behind a stream, if it is one.
func Terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, false
	}
	return f, true
}

// Raw has a terminal hand on every key as it is, until restore is called, which must be
// on every way out.
func Raw(in io.Reader) (restore func() error, err error) {
	f, ok := Terminal(in)
	if !ok {
		return func() error { return nil }, nil
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return func() error {
		if err := term.Restore(int(f.Fd()), before); err != nil {
			return fmt.Errorf("restore the terminal: %w", err)
		}
		return nil
	}, nil
}

// usual is the size of a terminal that is none of ours.
var usual = &sandboxhostv1.TerminalSize{Columns: 80, Rows: 24}

// Size is the size of the terminal behind one of some streams, the usual one if none is.
func Size(streams ...any) *sandboxhostv1.TerminalSize {
	for _, stream := range streams {
		f, ok := Terminal(stream)
		if !ok {
			continue
		}
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 && rows > 0 {
			return &sandboxhostv1.TerminalSize{Columns: uint32(columns), Rows: uint32(rows)}
		}
	}
	return usual
}

// Sizes delivers the size of the terminal behind some streams whenever it has another, the
// newest one only, until stop is called.
func Sizes(streams ...any) (sizes <-chan *sandboxhostv1.TerminalSize, stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	out := make(chan *sandboxhostv1.TerminalSize)
	over, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop, which waits for it
		defer close(done)
		for {
			select {
			case <-changes:
			case <-over:
				return
			}
			select {
			case out <- Size(streams...):
			case <-over:
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(changes)
		close(over)
		<-done
	}
}

// numberOf is the number of a signal; the usual request to end for what has none.
func numberOf(s os.Signal) uint32 {
	if n, ok := s.(syscall.Signal); ok {
		return uint32(n)
	}
	return uint32(syscall.SIGTERM)
}
