package engine

import (
	"context"
	"net"
	"net/netip"

	"staddle.internal/kit/id"
)

// Inside is what an engine does inside of sandboxes that run, beside the steps of
// their lives. Its methods may be called by many goroutines at once, also while a
// step is done. Unavailable means that it could not be asked, which says nothing.
type Inside interface {
	// Exec runs one command inside a running container and returns when it has ended,
	// with the code that it ended with. NotFound: there is no such container or
	// program. Invalid: it cannot be run. When ctx ends, its cause. Whatever it started
	// is ended with it.
	Exec(ctx context.Context, c Command) (CommandResult, error)

	// Dial connects by TCP from inside the network of a sandbox. An error without a
	// kind is the answer of that network, such as a refusal. The caller closes the
	// connection.
	Dial(ctx context.Context, uid id.Sandbox, to netip.AddrPort) (net.Conn, error)

	// Listeners lists the sockets inside the network of a sandbox at which somebody
	// can arrive, by TCP and UDP, in no order.
	Listeners(ctx context.Context, uid id.Sandbox) ([]Listener, error)
}

// Listener is a socket that waits for somebody.
type Listener struct {
	// Address that it is bound to; an unspecified one stands for all.
	Address netip.AddrPort
	// UDP is true for UDP, false for TCP.
	UDP bool
}

// Command is a command to run inside a container, beside its main process.
type Command struct {
	// ContainerID is the id of the container.
	ContainerID string
	// ID of the command within the container. Two with the same id do not run at once:
	// one that is left from an earlier life of this process is ended first.
	ID string
	// Args are program and arguments.
	Args []string
	// Adopt is true for one that is not ended but waited for, when it is found running
	// under the same id, and that goes on when ctx is cancelled. A deadline ends it all
	// the same.
	Adopt bool
}

// CommandResult is how a command has ended.
type CommandResult struct {
	// Code is the exit code, 128 + signal if one ended it.
	Code uint32
	// OOMKilled is true when the kernel ended it for memory: it counts as one of the
	// processes of its container, and shares the limit of that.
	OOMKilled bool
	// Output is the beginning of what it printed, at most 1 KiB. Empty for one that
	// was adopted.
	Output string
}
