package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// within runs fn in the network of a sandbox: in its namespace, or, if it has none of
// its own, where we are. Fn must not hand its work to another goroutine before its
// sockets are made.
func (e *Engine) within(uid id.Sandbox, fn func() error) error {
	path := e.pins.Path(uid, namespace.Net)
	_, err := os.Lstat(path)
	if err == nil {
		return namespace.Inside(path, fn)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fault.New(fault.Unavailable, "enter network of sandbox %s: %w", uid, err)
	}
	if _, err := os.Lstat(e.pins.Path(uid, namespace.IPC)); err != nil {
		return fault.New(fault.Unavailable, "enter network of sandbox %s: it is not there", uid)
	}
	return fn()
}

// Dial connects from inside a sandbox. See engine.Inside.
func (e *Engine) Dial(ctx context.Context, uid id.Sandbox, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	var refused error
	err := e.within(uid, func() error {
		// One address that is no name: the socket is made on this very thread, and
		// stays in the namespace that it was made in.
		conn, refused = (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		return nil
	})
	if err != nil {
		return nil, fault.New(fault.Unavailable, "connect inside sandbox %s: %w", uid, err)
	}
	return conn, refused
}

// Listeners lists who waits inside a sandbox. See engine.Inside.
func (e *Engine) Listeners(_ context.Context, uid id.Sandbox) ([]engine.Listener, error) {
	var list []engine.Listener
	err := e.within(uid, func() error {
		for _, table := range socketTables {
			raw, err := os.ReadFile("/proc/thread-self/net/" + table.file)
			if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
				continue
			}
			if err != nil {
				return err
			}
			found, err := listenersIn(raw, table.udp)
			if err != nil {
				return fmt.Errorf("read table %s: %w", table.file, err)
			}
			list = append(list, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fault.New(fault.Unavailable, "list listeners of sandbox %s: %w", uid, err)
	}
	return list, nil
}
