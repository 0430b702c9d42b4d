package clusteraccess

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// cut is a TCP proxy that can swallow everything without closing anything, as a
// network does that drops packets.
type cut struct {
	address string

	mu      sync.Mutex // guards all below
	dropped bool
	conns   []net.Conn
}

func newCut(t *testing.T, to string) *cut {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cut{address: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed below
			}
			c.mu.Lock()
			c.conns = append(c.conns, in)
			c.mu.Unlock()
			wg.Go(func() { c.serve(in, to) })
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		for _, conn := range c.conns {
			conn.Close()
		}
		c.mu.Unlock()
		wg.Wait()
	})
	return c
}

func (c *cut) serve(in net.Conn, to string) {
	out, err := net.Dial("tcp", to)
	if err != nil {
		in.Close()
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, out)
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { c.copy(out, in) })
	wg.Go(func() { c.copy(in, out) })
	wg.Wait()
}

// copy passes on what comes unless it is swallowed.
func (c *cut) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !c.dropping() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !c.dropping() {
				from.Close()
			}
			return
		}
	}
}

func (c *cut) dropping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

func (c *cut) drop()    { c.set(true) }
func (c *cut) restore() { c.set(false) }

func (c *cut) set(dropped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped = dropped
}
