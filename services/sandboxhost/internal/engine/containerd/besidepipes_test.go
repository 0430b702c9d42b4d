package containerd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Input that is written and ended before the shim has got to opening its end is not lost:
// nobody gets to writing before.
func TestPipes_InputWaitsForItsReader(t *testing.T) {
	p, err := makePipes(filepath.Join(t.TempDir(), "beside"), true, true, false)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { // ends with the reader, below
		err := p.connected(t.Context())
		_, writeErr := p.stdin.WriteString("x")
		written <- errors.Join(err, writeErr, p.stdin.Close())
	}()
	// What was held of the output is let go of first: its end says how far they are.
	if _, err := io.ReadAll(p.stdout.f); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdin.WriteString("too early"); !errors.Is(err, unix.EPIPE) {
		t.Errorf("before anybody reads: got %v, want EPIPE", err)
	}
	select {
	case err := <-written:
		t.Fatalf("it went on before anybody read: %v", err)
	default:
	}
	read, err := os.Open(p.in)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(read); err != nil || string(got) != "x" {
		t.Errorf("got %q, %v, want what was written", got, err)
	}
	if err := errors.Join(<-written, read.Close(), p.close()); err != nil {
		t.Error(err)
	}
}

// Nobody who never reads is waited for longer than wanted.
func TestPipes_AReaderThatNeverComes(t *testing.T) {
	p, err := makePipes(filepath.Join(t.TempDir(), "beside"), true, false, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.connected(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the cause", err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}
