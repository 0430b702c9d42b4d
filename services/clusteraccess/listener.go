package clusteraccess

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
)

// gatewaySocket is the name under which whoever supervises passes the gateway's
// listener, or keeps it.
const gatewaySocket = "clusteraccess.tcp"

// passedListener is the gateway's listener as it was passed to this process. One that is
// for another address than node.yaml names by now, or for none, is given up: callers
// would wait in it for nobody.
func passedListener(fds *fdstore.Store, address string, log *slog.Logger) net.Listener {
	passed, ok := fds.Listener(gatewaySocket)
	if !ok {
		return nil
	}
	if address != "" && rpc.ListensAt(passed, address) {
		return passed
	}
	log.Warn("passed socket left", logging.Path(passed.Addr().String()))
	_ = passed.Close() // our copy, through which nothing was written
	if err := fds.Remove(gatewaySocket); err != nil {
		log.Warn("passed socket not given up", logging.Err(err))
	}
	return nil
}

// keeper leaves a copy of the gateway's own listener to whoever supervises, where that
// keeps files: a restart then refuses no caller. A supervisor that makes the listener
// itself passes it at the start, and this one is not made.
func keeper(fds *fdstore.Store, log *slog.Logger) func(net.Listener) {
	if !fds.Available() {
		return nil
	}
	return func(l net.Listener) {
		if err := leave(fds, l); err != nil {
			log.Warn("listener not kept over a restart", logging.Err(err))
		}
	}
}

func leave(fds *fdstore.Store, l net.Listener) error {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return fault.New(fault.Invalid, "copy listener %s: it has no descriptor", l.Addr())
	}
	f, err := tcp.File()
	if err != nil {
		return fmt.Errorf("copy listener %s: %w", l.Addr(), err)
	}
	return errors.Join(fds.Push(gatewaySocket, f), f.Close())
}
