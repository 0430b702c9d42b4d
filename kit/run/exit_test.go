package run_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/run"
)

type configError struct{}

func (configError) Error() string  { return "node.yaml:3: unknown key" }
func (configError) ConfigAtFault() {}

func TestExitCode(t *testing.T) {
	term := &run.SignalError{Signal: syscall.SIGTERM}
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"done", nil, run.ExitOK},
		{"signal", term, run.ExitOK},
		{"wrapped signal", fmt.Errorf("member a: %w", term), run.ExitOK},
		{"signal, and the stop failed", errors.Join(term, errors.New("x")), run.ExitFailed},
		{"configuration", fmt.Errorf("load: %w", configError{}), run.ExitConfig},
		{"the code of a child is not ours", &exec.ExitError{ProcessState: &os.ProcessState{}}, run.ExitFailed},
		{"any", errors.New("x"), run.ExitFailed},
		{"cancelled", context.Canceled, run.ExitFailed},
	}
	for _, tt := range tests {
		if got := run.ExitCode(tt.err); got != tt.want {
			t.Errorf("%s: ExitCode(%v) = %d, want %d", tt.name, tt.err, got, tt.want)
		}
	}
}

func TestSignal_IsTheCause(t *testing.T) {
	ctx, stop := run.Signal(t.Context())
	defer stop()
	for range 2 { // the second must do no harm
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("context lives 10s after the signal")
	}
	sig, ok := errors.AsType[*run.SignalError](context.Cause(ctx))
	if !ok || sig.Signal != syscall.SIGTERM {
		t.Errorf("cause is %v, want SIGTERM", context.Cause(ctx))
	}
	if got := run.ExitCode(context.Cause(ctx)); got != run.ExitOK {
		t.Errorf("ExitCode = %d, want %d", got, run.ExitOK)
	}
}

func TestSignal_StopEndsTheContext(t *testing.T) {
	ctx, stop := run.Signal(t.Context())
	stop()
	stop()
	if !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("cause is %v", context.Cause(ctx))
	}
}
