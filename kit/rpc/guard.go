package rpc

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/logging"
)

// guardPeriod is how often a server looks whether its path still leads to it.
const guardPeriod = 5 * time.Second

// makerLooks is how many looks whoever made a passed socket has to bring its path
// back: fifteen seconds, where our supervisor takes one and a manager that brings
// nothing back is found out in time.
const makerLooks = 3

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

// place is the path of one socket, with the listeners that whoever connects there may
// reach. A listener whose path was lost is served on: who made its socket may bring
// the path back, and connections made through it are fine.
type place struct {
	path   string
	served []net.Listener
	missed int // looks in a row that did not find it
}

// guard waits for the end, and meanwhile sees to it that the paths of sockets lead
// to this server: a cleaner of temporary files may have removed one, and the open
// listener would never notice.
func (s *Server) guard(ctx context.Context, serving *servers, listeners []net.Listener) error {
	var places []*place
	for _, l := range listeners {
		if l.Addr().Network() == "unix" {
			places = append(places, &place{path: l.Addr().String(), served: []net.Listener{l}})
		}
	}
	tick := time.NewTicker(s.guardPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-serving.errs:
			return err
		case <-tick.C:
			for _, p := range places {
				s.mend(serving, p)
			}
		}
	}
}

// mend brings a lost path back, and says so where it cannot. Who made the socket
// mends it: one that was passed to this process is left to its maker, and made anew
// only when the maker does not come.
func (s *Server) mend(serving *servers, p *place) {
	source := "socket " + p.path
	if slices.ContainsFunc(p.served, InPlace) {
		p.missed = 0
		s.status.Unblock(source)
		return
	}
	p.missed++
	if passed(p.served[0]) && p.missed <= makerLooks {
		if p.missed == 1 {
			s.cfg.Log.Warn("socket lost", logging.Path(p.path))
		}
		s.status.Block(source, fmt.Sprintf("socket lost: %s does not lead here; waiting for who made it", p.path))
		return
	}
	fresh, err := s.listenAnew(p)
	if err != nil {
		s.cfg.Log.Warn("socket lost", logging.Path(p.path), logging.Err(err))
		s.status.Block(source, fmt.Sprintf("socket lost: %v", err))
		return
	}
	s.cfg.Log.Warn("socket remade", logging.Path(p.path))
	p.served, p.missed = append(p.served, fresh), 0
	s.status.Unblock(source)
	serving.add(fresh)
}

// listenAnew makes the folder as well, which may be what was removed.
func (s *Server) listenAnew(p *place) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(p.path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder of socket %s: %w", p.path, err)
	}
	return Listen(p.path, socketMode(p.served[0]))
}

func passed(l net.Listener) bool {
	_, ok := l.(*passedSocket)
	return ok
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
