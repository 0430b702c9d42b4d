package engine

import (
	"context"
	"io"
	"syscall"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/inlet"
)

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	// Columns and Rows, from 1.
	Columns, Rows uint16
}

// Beside is a process to run for a person inside a running container, beside its main
// process.
type Beside struct {
	// UID of the sandbox, and ContainerID of its container.
	UID         id.Sandbox
	ContainerID string
	// Args are program and arguments.
	Args []string
	// Env is "NAME=value" each, in addition to the environment of the container.
	Env []string
	// User as in a spec; empty means that of the main process.
	User string
	// Dir is the working directory; empty means that of the main process.
	Dir string
	// Stdin is true when somebody will write to its standard input.
	Stdin bool
	// Terminal is the size of the one that it gets; nil for none.
	Terminal *TerminalSize
	// Detached is true for one that goes on without its opener: it has no streams.
	Detached bool
}

// Process is a process that was begun with a Beside. Its streams may be used by one
// goroutine each, and the rest by any.
type Process interface {
	// Stdin is what it reads; nil without. Writing waits while it does not read, and fails
	// when it never will again.
	Stdin() io.Writer
	// EndStdin ends its standard input, after all that was written to it.
	EndStdin(ctx context.Context) error
	// Stdout and Stderr are what it writes; nil for one that it does not have. They are at
	// their end when nobody holds them open, or, after Drain, soon.
	Stdout() io.Reader
	Stderr() io.Reader
	// Drain has the outputs end when nothing came for a while, whoever holds them
	// open: for the time after its end.
	Drain()
	// Resize gives its terminal another size. One that has ended is success.
	Resize(ctx context.Context, size TerminalSize) error
	// Signal sends a signal to it. One that has ended is success.
	Signal(ctx context.Context, signal syscall.Signal) error
	// Wait returns how it ended, once it has. It asks again while the runtime cannot be
	// asked. Unavailable with reason EXIT_UNKNOWN: nobody can tell.
	Wait(ctx context.Context) (Ended, error)
	// Close ends it by force, with all that it has started, if it has not ended by itself,
	// and removes all that was made for it. What it has left running goes on if
	// it had ended by itself. ctx bounds it.
	Close(ctx context.Context) error
}

// Main is the main process of a container, to which somebody attaches.
type Main struct {
	// UID of the sandbox, and ContainerID of its container.
	UID         id.Sandbox
	ContainerID string
	// Terminal says whether it has one.
	Terminal bool
	// Input is what somebody sends to it; nil for nothing. Of one container there is one at a time.
	Input *inlet.Input
}

// Attached is a hold on a main process. Its Stdin may be used by one goroutine, and the rest
// by any.
type Attached interface {
	// Stdin is what it reads; nil without. Writing waits while it does not read; what it never
	// will read is dropped.
	Stdin() io.Writer
	// Taken is how many bytes of the input were taken since it began, earlier holds included.
	Taken() uint64
	// EndStdin ends its standard input for good, after all that was written to it. Invalid
	// in a terminal. Safe to repeat.
	EndStdin(ctx context.Context) error
	// Resize gives its terminal another size. One that has ended is success.
	Resize(ctx context.Context, size TerminalSize) error
	// Signal sends a signal to it. One that has ended is success.
	Signal(ctx context.Context, signal syscall.Signal) error
	// Close lets go of it. A Write that waits fails.
	Close() error
}

// Ended is how a Process has ended.
type Ended struct {
	// Code is the exit code, 128 + signal if one ended it.
	Code uint32
	// ContainerEnded is true when its container is found to have ended, too.
	ContainerEnded bool
	// OOMKilled is true when the kernel ended it for memory, and not its container.
	OOMKilled bool
}

// LeftProcess is a Process that an earlier life of this process has left. It has no
// streams.
type LeftProcess struct {
	Process
	// UID of its sandbox.
	UID id.Sandbox
	// Detached is true for one that goes on.
	Detached bool
}
