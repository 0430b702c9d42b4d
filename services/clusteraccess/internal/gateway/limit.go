package gateway

import (
	"net"
	"sync"
	"sync/atomic"

	"staddle.internal/kit/fault"
)

// limit counts the open calls of each caller, over all its connections.
type limit struct {
	most int

	mu   sync.Mutex     // guards open
	open map[string]int // by identity; without those that have none
}

// enter counts one more call. It is Unavailable for a caller that has its share;
// leave gives it back.
func (l *limit) enter(name string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[name] >= l.most {
		return nil, fault.WithReason(fault.New(fault.Unavailable, "%s has %d calls open, the most that there may be", name, l.most), "TOO_MANY_CALLS")
	}
	l.open[name]++
	return func() { l.leave(name) }, nil
}

func (l *limit) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[name]--; l.open[name] == 0 {
		delete(l.open, name)
	}
}

// bounded is a listener with a limit of connections that are open at a time. One
// more is closed at once: nobody waits for a place that may never be free.
type bounded struct {
	net.Listener
	most int64
	open atomic.Int64
}

// Accept returns the next connection that there is room for.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) <= b.most {
			return &counted{Conn: conn, left: sync.OnceFunc(func() { b.open.Add(-1) })}, nil
		}
		b.open.Add(-1)
		_ = conn.Close() // of somebody who learns of it by that
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	left func()
}

// Close closes it, and makes room for another.
func (c *counted) Close() error {
	c.left()
	return c.Conn.Close()
}
