// Package listening keeps a TCP listener over the restarts of the process that
// listens: a copy stays with whoever supervises, so that callers wait for the next
// process and are not refused.
//
// It owns no listener itself. It must never keep one for another address than the
// configuration names by now: callers would wait in it for nobody.
package listening

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
)

// Place is where a process listens.
type Place struct {
	// Address is host:port. It is not looked at where a listener was passed.
	Address string
	// Passed is the listener that whoever supervises has passed. Nil means that the process
	// makes its own.
	Passed net.Listener
	// Keep is given a listener that the process made itself, so that a copy of it can be left
	// for the next one. Nil means that none is.
	Keep func(net.Listener)
	// Again is how an address that cannot be had is tried again.
	Again backoff.Policy
	// Failed is told why it cannot be had: once per cause, not per try.
	Failed func(err error)
}

// Listen returns the listener, once there is one. It fails only when ctx ends, by its cause.
func (p Place) Listen(ctx context.Context) (net.Listener, error) {
	if p.Passed != nil {
		return p.Passed, nil
	}
	said := ""
	for attempt := 1; ; attempt++ {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", p.Address)
		if err == nil {
			if p.Keep != nil {
				p.Keep(l)
			}
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if said != err.Error() {
			said = err.Error()
			p.Failed(err)
		}
		if err := backoff.Wait(ctx, p.Again.Delay(attempt, rand.Float64())); err != nil {
			return nil, err
		}
	}
}

// Passed returns the listener that was passed to this process by name, and nil if none
// was. One that is for another address, or where address is empty, is given up.
func Passed(fds *fdstore.Store, name, address string, log *slog.Logger) net.Listener {
	passed, ok := fds.Listener(name)
	if !ok {
		return nil
	}
	if address != "" && rpc.ListensAt(passed, address) {
		return passed
	}
	log.Warn("passed socket left", logging.Path(passed.Addr().String()))
	_ = passed.Close() // our copy, through which nothing was written
	if err := fds.Remove(name); err != nil {
		log.Warn("passed socket not given up", logging.Err(err))
	}
	return nil
}

// Keeper returns what leaves a copy of a listener by name to whoever supervises, and nil
// where nobody keeps files. That a copy was not taken is logged, and costs no more than
// what was to be won.
func Keeper(fds *fdstore.Store, name string, log *slog.Logger) func(net.Listener) {
	if !fds.Available() {
		return nil
	}
	return func(l net.Listener) {
		if err := leave(fds, name, l); err != nil {
			log.Warn("listener not kept over a restart", logging.Err(err))
		}
	}
}

func leave(fds *fdstore.Store, name string, l net.Listener) error {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return fault.New(fault.Invalid, "copy listener %s: it has no descriptor", l.Addr())
	}
	f, err := tcp.File()
	if err != nil {
		return fmt.Errorf("copy listener %s: %w", l.Addr(), err)
	}
	return errors.Join(fds.Push(name, f), f.Close())
}
