// Package forward owns the near end of ports that a person reaches inside a sandbox: the
// listeners on this machine, and a stream for each connection that comes.
//
// A connection that breaks on one side breaks on the other: it is never made to look as if
// it had ended well. It must never listen anywhere but where it was told, and never give
// up listening because one connection failed. In the trail it is the end of
// "staddle port-forward".
package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
)

// MaxConnections is how many connections are served at a time; more of them wait. A node
// takes as many for one sandbox.
const MaxConnections = 256

// Port is one port that is forwarded.
type Port struct {
	// Local is the port on this machine; 0 means any that is free.
	Local uint16
	// Remote is the port inside the sandbox.
	Remote uint16
}

// Request says what to forward, and from where.
type Request struct {
	// UID of the sandbox.
	UID string
	// Ports to forward, each from every one of Addresses.
	Ports     []Port
	Addresses []netip.Addr
	// Listening is told of each listener, when all are there.
	Listening func(from net.Addr, remote uint16)
	// Failed is told of each connection that failed, by one goroutine at a time. The
	// ends of the programs on this machine are no failures.
	Failed func(from net.Addr, remote uint16, err error)
}

// Run forwards until ctx ends, whose cause it returns, or until no connection can succeed any
// more: fault.NotFound when the sandbox was removed, fault.Denied when the caller may not.
func Run(ctx context.Context, client sandboxhostv1.ForwardServiceClient, req Request) error {
	doors, err := listen(ctx, req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &forwarder{client: client, req: req, cancel: cancel, slots: make(chan struct{}, MaxConnections)}
	for _, d := range doors {
		req.Listening(d.Addr(), d.remote)
	}
	for _, d := range doors {
		f.wait.Go(func() { f.serve(ctx, d) }) // ends with ctx; waited for below
	}
	<-ctx.Done()
	for _, d := range doors {
		_ = d.Close() // nobody is to come any more
	}
	f.wait.Wait()
	return context.Cause(ctx)
}

// door is a listener for one port of the sandbox.
type door struct {
	*net.TCPListener
	remote uint16
}

// listen opens all listeners, or none.
func listen(ctx context.Context, req Request) (doors []door, err error) {
	defer func() {
		if err != nil {
			for _, d := range doors {
				err = errors.Join(err, d.Close())
			}
		}
	}()
	for _, address := range req.Addresses {
		for _, port := range req.Ports {
			at := netip.AddrPortFrom(address, port.Local)
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
			if err != nil {
				return doors, noListener(at, err)
			}
			tcp, ok := l.(*net.TCPListener)
			if !ok {
				return doors, errors.Join(fmt.Errorf("listen on %s: got a %T", at, l), l.Close())
			}
			doors = append(doors, door{tcp, port.Remote})
		}
	}
	return doors, nil
}

func noListener(at netip.AddrPort, err error) error {
	why, ok := errors.AsType[syscall.Errno](err)
	switch {
	case !ok:
		return fmt.Errorf("listen on %s: %w", at, err)
	case why == syscall.EACCES:
		return fault.New(fault.Denied, "listen on %s: %w", at, why)
	}
	return fault.New(fault.Conflict, "listen on %s: %w", at, why)
}

// forwarder is what all connections share.
type forwarder struct {
	client sandboxhostv1.ForwardServiceClient
	req    Request
	cancel context.CancelCauseFunc // ends all
	slots  chan struct{}           // one for each connection that is served
	wait   sync.WaitGroup

	mu sync.Mutex // held while a failure is told of
}

// serve takes connections of one listener until that is closed.
func (f *forwarder) serve(ctx context.Context, d door) {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := d.AcceptTCP()
		if err != nil {
			if ctx.Err() == nil {
				f.cancel(fmt.Errorf("take connections at %s: %w", d.Addr(), err))
			}
			return
		}
		f.wait.Go(func() { // ends with the connection, or with ctx; Run waits for it
			defer func() { <-f.slots }()
			f.one(ctx, conn, d.remote)
		})
	}
}

// one carries one connection and tells of its failure.
func (f *forwarder) one(ctx context.Context, conn *net.TCPConn, remote uint16) {
	from := conn.RemoteAddr()
	err := carry(ctx, f.client, conn, &sandboxhostv1.ForwardStart{Uid: f.req.UID, Port: uint32(remote)})
	if _, near := errors.AsType[*nearError](err); err == nil || near || ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	f.req.Failed(from, remote, err)
	f.mu.Unlock()
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Denied: // a uid never comes back, and who may not now may not later
		f.cancel(err)
	default: // the next one may succeed
	}
}
