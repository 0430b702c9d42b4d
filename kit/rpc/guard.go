package rpc

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/logging"
)

// guardPeriod is how often a server looks whether its path still leads to it.
const guardPeriod = 5 * time.Second

// servers runs one accept loop per listener.
type servers struct {
	grpc *grpc.Server
	errs chan error
	wg   sync.WaitGroup
}

func (s *servers) add(l net.Listener) {
	s.wg.Go(func() { // ends when the server stops; wait waits for it
		if err := s.grpc.Serve(l); err != nil {
			select {
			case s.errs <- fmt.Errorf("serve %s: %w", l.Addr(), err):
			default: // an earlier failure is already on its way
			}
		}
	})
}

func (s *servers) wait() { s.wg.Wait() }

// guard waits for the end, and meanwhile sees to it that the socket's path leads
// to this server: a cleaner of temporary files may have removed it, and the open
// listener would never notice.
func (s *Server) guard(ctx context.Context, serving *servers, listeners []net.Listener) error {
	tick := time.NewTicker(s.guardPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-serving.errs:
			return err
		case <-tick.C:
			for i, l := range listeners {
				listeners[i] = s.mend(serving, l)
			}
		}
	}
}

// mend listens anew where the path of l is gone, and says so where it cannot. The
// old listener stays: connections made through it are fine.
func (s *Server) mend(serving *servers, l net.Listener) net.Listener {
	path := l.Addr().String()
	if l.Addr().Network() != "unix" || leadsTo(path, l) {
		s.status.Unblock("socket")
		return l
	}
	fresh, err := Listen(path, socketMode(l))
	if err != nil {
		s.cfg.Log.Warn("socket lost", logging.Path(path), logging.Err(err))
		s.status.Block("socket", fmt.Sprintf("socket lost: %v", err))
		return l
	}
	s.cfg.Log.Warn("socket remade", logging.Path(path))
	s.status.Unblock("socket")
	serving.add(fresh)
	return fresh
}

// InPlace reports whether whoever connects to the path of l reaches it. Of a
// listener that is no unix socket it is true.
func InPlace(l net.Listener) bool {
	return l.Addr().Network() != "unix" || leadsTo(l.Addr().String(), l)
}

// leadsTo reports whether path is the socket of l. Of a listener that knows no
// file only the existence of a socket is known.
func leadsTo(path string, l net.Listener) bool {
	if known, ok := l.(interface{ inPlace() bool }); ok {
		return known.inPlace()
	}
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket
}

func socketMode(l net.Listener) os.FileMode {
	if own, ok := l.(*ownSocket); ok {
		return own.mode
	}
	return DefaultSocketMode
}
