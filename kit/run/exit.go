package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes of every process.
const (
	ExitOK     = 0 // done, or stopped by a signal
	ExitFailed = 1 // start it again
	ExitConfig = 2 // do not start it again before its configuration is mended
)

// ConfigError is what an error says of itself when the configuration is at
// fault, so that this package need not know the configuration.
type ConfigError interface {
	error
	// ConfigAtFault does nothing but mark.
	ConfigAtFault()
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct {
	// Signal is the one that came first.
	Signal os.Signal
}

// Error names the signal.
func (s *SignalError) Error() string { return fmt.Sprintf("signal: %s", s.Signal) }

// Signal returns a context that ends at SIGTERM or SIGINT, with a *SignalError as
// its cause. Later signals do nothing: an interrupt from the terminal reaches a
// child together with the stop by its supervisor, and must not cut that short.
// The caller calls stop when it returns.
func Signal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() { // ends with the context, which stop ends; stop waits for it
		defer close(done)
		select {
		case s := <-signals:
			cancel(&SignalError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		<-done
		signal.Stop(signals)
	}
}

// ExitCode says how a process ends that Members, or its own start, left with
// err: ExitOK for nil or a signal after which everything stopped cleanly,
// ExitConfig for a fault of the configuration, ExitFailed for the rest.
func ExitCode(err error) int {
	if err == nil || onlySignal(err) {
		return ExitOK
	}
	if _, ok := errors.AsType[ConfigError](err); ok {
		return ExitConfig
	}
	return ExitFailed
}

// onlySignal reports whether err is nothing but a signal: not one with a failed
// stop joined to it.
func onlySignal(err error) bool {
	switch e := err.(type) { //nolint:errorlint // the tree itself is walked
	case *SignalError:
		return true
	case interface{ Unwrap() error }:
		return e.Unwrap() != nil && onlySignal(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !onlySignal(part) {
				return false
			}
		}
		return len(e.Unwrap()) > 0
	}
	return false
}
