package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// forwarding is a line of port-forward.
var forwarding = regexp.MustCompile(`(?m)^Forwarding from (\S+) -> (\d+)$`)

// forwards waits for so many lines of port-forward, and returns the near ends.
func forwards(t *testing.T, r *bed.Running, n int) (from []string) {
	t.Helper()
	bed.Eventually(t, waitLong, "it listens", func(context.Context) (bool, string) {
		from = nil
		for _, m := range forwarding.FindAllStringSubmatch(r.Stdout(), -1) {
			from = append(from, m[1])
		}
		return len(from) == n, r.Stdout() + r.Stderr()
	})
	return from
}

// echoed sends bytes and their end to who echoes, and returns what came back.
func echoed(b *bed.Bed, address string, sent []byte) ([]byte, error) {
	conn, err := b.Dial(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(waitLong)); err != nil {
		return nil, err
	}
	wrote := make(chan error, 1)
	go func() { // waited for below
		_, err := conn.Write(sent)
		wrote <- errors.Join(err, conn.CloseWrite())
	}()
	back, err := io.ReadAll(conn)
	return back, errors.Join(err, <-wrote)
}

// holding is a connection over which one byte has been echoed.
func holding(t *testing.T, b *bed.Bed, address string) (read func() error) {
	t.Helper()
	conn, err := b.Dial(address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte("x"))
	must(t, err)
	one := make([]byte, 1)
	_, err = io.ReadFull(conn, one)
	must(t, err)
	return func() error {
		_, err := conn.Read(one)
		return err
	}
}

// broke says whether a connection was reset, and did not just end.
func broke(err error) bool { return err != nil && !errors.Is(err, io.EOF) }

// Ports of a sandbox are reached from this machine, those too that listen at its loopback only: many
// connections at once, each with two ends; what fails is told of, and the next one is served. (EXE-4, EXE-6)
func TestForward_ReachesPortsOfASandbox(t *testing.T) {
	e := withSandbox(t, probe("main", "serve", "127.0.0.1:7000"))
	b := e.b
	r := b.Begin(append(e.before, "port-forward", "box", "7070:7000", ":7000", ":7999")...)
	from := forwards(t, r, 3)
	if !strings.HasPrefix(r.Stdout(), "Forwarding from 127.0.0.1:7070 -> 7000\n") {
		t.Errorf("got %q", r.Stdout())
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if back, err := echoed(b, from[i%2], large); err != nil || !bytes.Equal(back, large) {
				t.Errorf("got %d bytes, %v, want %d back", len(back), err, len(large))
			}
		})
	}
	all.Wait()
	if back, err := echoed(b, from[2], nil); !broke(err) {
		t.Errorf("where nobody listens: got %q, %v, want a reset", back, err)
	}
	bed.Eventually(t, waitLong, "the refused one is told of", func(context.Context) (bool, string) {
		return strings.Count(r.Stderr(), "nobody listens at port 7999") == 1, r.Stderr()
	})
	read := holding(t, b, from[0])
	b.Kill("sandboxhost")
	if err := read(); !broke(err) {
		t.Errorf("over a kill of the host: got %v, want a reset", err)
	}
	if back, err := echoed(b, from[0], []byte("after it")); err != nil || string(back) != "after it" {
		t.Errorf("after a kill of the host: got %q, %v", back, err)
	}
	b.WaitReady()
	read = holding(t, b, from[1])
	bed.KillPID(b, b.Workloads()[0])
	_ = read() // it ends, one way or the other: the program's kernel says which
	await(t, b, e.uid, "another attempt", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() > 1 })
	bed.Eventually(t, waitLong, "the next attempt is reached", func(context.Context) (bool, string) {
		back, err := echoed(b, from[1], []byte("again"))
		return err == nil && string(back) == "again", string(back) + sprint(err)
	})
	if taken := b.CLI(append(e.before, "port-forward", "box", "7070:7000")...); taken.Code != 4 || !strings.Contains(taken.Stderr, "listen on 127.0.0.1:7070: address already in use") {
		t.Errorf("a port that is taken: got code %d, %s", taken.Code, taken.Stderr)
	}
	other := b.Begin(append(e.before, "port-forward", "box", ":7000")...)
	forwards(t, other, 1)
	other.Interrupt()
	if got := other.Wait(); got.Code != 128+2 {
		t.Errorf("interrupted: got code %d, %s, want 130", got.Code, got.Stderr)
	}
	read = holding(t, b, from[0])
	b.OK(append(e.before, "rm", "box")...)
	_ = read() // as above
	_, _ = echoed(b, from[0], nil)
	if got := r.Wait(); got.Code != 3 || !strings.Contains(got.Stderr, "it was removed") {
		t.Errorf("removed: got code %d, %s, want 3", got.Code, got.Stderr)
	}
}
