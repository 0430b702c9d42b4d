package rpc

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"
)

// watchful looks so often that a test need not wait.
func watchful(s *Server) { s.guardPeriod = 10 * time.Millisecond }

// answers waits until a new connection to path is served.
func answers(t *testing.T, path string) {
	t.Helper()
	eventually(t, "call over a new connection", func() (any, bool) {
		conn, err := Dial(path, DialConfig{FailFast: true})
		must(t, err)
		defer conn.Close()
		_, err = call(t.Context(), conn, "Read", "")
		return err, err == nil
	})
}

// answersStill makes a call over an old connection.
func answersStill(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	_, err := call(t.Context(), conn, "Read", "")
	must(t, err)
}

// UDS-7: a server whose socket was removed, alone or with its folder, is reachable
// again by itself.
func TestServer_UDS7_RemakesARemovedSocket(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"socket": os.Remove,
		"folder": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := setup{path: filepath.Join(shortDir(t), "s.sock"), after: watchful}.start(t)
			old := dial(t, n.path, DialConfig{})
			answersStill(t, old)
			for range 2 {
				must(t, remove(n.path))
				answers(t, n.path)
				answersStill(t, old)
			}
			n.stop()
			if _, err := os.Lstat(n.path); !os.IsNotExist(err) {
				t.Errorf("after the stop the socket is still there: %v", err)
			}
		})
	}
}

func TestServer_UDS7_SaysThatItsSocketIsGone(t *testing.T) {
	n := setup{after: watchful}.start(t)
	answersStill(t, dial(t, n.path, DialConfig{}))
	must(t, os.Remove(n.path))
	must(t, os.Mkdir(n.path, 0o755)) // so that it cannot be remade
	eventually(t, "reason", func() (any, bool) {
		reason := n.Status().Get().GetReason()
		return reason, strings.Contains(reason, n.path) && strings.Contains(reason, "is a folder")
	})
	must(t, os.Remove(n.path))
	answers(t, n.path)
	eventually(t, "ready again", func() (any, bool) { return n.Status().Get(), n.Status().Ready() })
}

// maker is who made a socket and passed it to a server, as a supervisor does.
type maker struct {
	path, spare string
	socket      net.Listener
}

func newMaker(t *testing.T) *maker {
	t.Helper()
	dir := shortDir(t)
	m := &maker{path: filepath.Join(dir, "s.sock"), spare: filepath.Join(dir, "spare")}
	l, err := Listen(m.path, DefaultSocketMode)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	must(t, Spare(m.path, m.spare))
	m.socket = l
	return m
}

// passed is a copy, as a process inherits it.
func (m *maker) passed(t *testing.T) net.Listener {
	t.Helper()
	f, err := m.socket.(interface{ File() (*os.File, error) }).File()
	must(t, err)
	l, err := net.FileListener(f)
	must(t, errors.Join(err, f.Close()))
	return Adopt(l, m.path)
}

// serve runs a server on the passed socket that looks each period.
func (m *maker) serve(t *testing.T, period time.Duration, log *logBuffer) (*Server, func() error) {
	t.Helper()
	s, err := NewServer(ServerConfig{Process: "storage", Log: slog.New(slog.NewTextHandler(log, nil)), Peers: NewPeers(config.Users{})})
	must(t, err)
	s.guardPeriod = period
	s.GRPC().RegisterService(behaviour{}.desc(), nil)
	s.Status().SetReady()
	return s, background(t, s.Member(m.passed(t)))
}

func (m *maker) inode(t *testing.T) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(m.path)
	must(t, err)
	return info
}

// UDS-7 under a supervisor: the process says that the path is lost and leaves it to
// who made the socket, who brings back the very same.
func TestServer_UDS7_LeavesAPassedSocketToItsMaker(t *testing.T) {
	m, log := newMaker(t), new(logBuffer)
	s, stop := m.serve(t, 300*time.Millisecond, log)
	old := dial(t, m.path, DialConfig{})
	answersStill(t, old)
	before := m.inode(t)
	for range 2 {
		must(t, os.Remove(m.path))
		eventually(t, "reason", func() (any, bool) {
			reason := s.Status().Get().GetReason()
			return reason, strings.Contains(reason, m.path) && strings.Contains(reason, "waiting for who made it")
		})
		must(t, Relink(m.path, m.spare))
		answers(t, m.path)
		eventually(t, "ready again", func() (any, bool) { return s.Status().Get(), s.Status().Ready() })
	}
	answersStill(t, old)
	if !os.SameFile(before, m.inode(t)) || strings.Contains(log.String(), "socket remade") {
		t.Errorf("the process made a socket of its own:\n%s", log.String())
	}
	stop()
	if !os.SameFile(before, m.inode(t)) {
		t.Error("the stop took the path of the maker's socket away")
	}
}

// One whose maker does not come is made anew, and the maker who comes late neither
// is harmed nor harms.
func TestServer_UDS7_MendsAPassedSocketWhoseMakerIsAway(t *testing.T) {
	m, log := newMaker(t), new(logBuffer)
	s, stop := m.serve(t, 10*time.Millisecond, log)
	must(t, os.Remove(m.path))
	answers(t, m.path)
	eventually(t, "ready again", func() (any, bool) { return s.Status().Get(), s.Status().Ready() })
	if err := Relink(m.path, m.spare); err == nil {
		t.Error("the maker took away a socket that is served")
	}
	answers(t, m.path)

	// Lost once more, and this time the maker is first: its socket is served still.
	must(t, os.Remove(m.path))
	eventually(t, "maker's socket back", func() (any, bool) {
		err := Relink(m.path, m.spare)
		if err != nil {
			os.Remove(m.path) // the process was faster
		}
		return err, err == nil
	})
	answers(t, m.path)
	eventually(t, "ready on the maker's socket", func() (any, bool) { return s.Status().Get(), s.Status().Ready() })
	stop()
	if !SameSocket(m.path, m.spare) {
		t.Error("the stop took the path of the maker's socket away")
	}
}

// A process may be started just when its path is gone.
func TestServer_UDS7_PassedWhileItsPathIsLost(t *testing.T) {
	m, log := newMaker(t), new(logBuffer)
	must(t, os.Remove(m.path))
	s, _ := m.serve(t, 50*time.Millisecond, log)
	must(t, Relink(m.path, m.spare))
	answers(t, m.path)
	eventually(t, "ready", func() (any, bool) { return s.Status().Get(), s.Status().Ready() })
	if strings.Contains(log.String(), "socket remade") || !SameSocket(m.path, m.spare) {
		t.Errorf("the process made a socket of its own:\n%s", log.String())
	}
}

// A path that is lost is told of although another is in place.
func TestServer_UDS7_OnePlaceDoesNotSpeakForAnother(t *testing.T) {
	dir := shortDir(t)
	s, err := NewServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(config.Users{})})
	must(t, err)
	lost, err := Listen(filepath.Join(dir, "a.sock"), DefaultSocketMode)
	must(t, err)
	fine, err := Listen(filepath.Join(dir, "b.sock"), DefaultSocketMode)
	must(t, err)
	must(t, os.Remove(lost.Addr().String()))
	must(t, os.Mkdir(lost.Addr().String(), 0o755))
	defer func() { must(t, errors.Join(lost.Close(), fine.Close())) }()
	for range 2 {
		for _, l := range []net.Listener{lost, fine} {
			s.mend(&servers{}, &place{path: l.Addr().String(), served: []net.Listener{l}})
		}
		if got := s.Status().Get().GetReason(); !strings.Contains(got, lost.Addr().String()) {
			t.Fatalf("reason %q does not tell of the lost path", got)
		}
	}
}
