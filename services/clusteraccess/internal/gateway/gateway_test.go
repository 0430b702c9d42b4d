package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/services/clusteraccess/internal/credentials"
)

// await waits until ok, and shows the last value when that does not come.
func await(t *testing.T, what string, last func() string, ok func() bool) {
	t.Helper()
	end := time.NewTimer(20 * time.Second)
	defer end.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-end.C:
			t.Fatalf("await %s: last seen: %s", what, last())
		}
	}
}

func TestRun_AddressThatIsTakenHoldsNobodyUp(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	log := &lines{}
	serving := make(chan bool, 4)
	g := newGateway(Config{Address: taken.Addr().String()}, Deps{
		Files: credentials.Files{CA: "/none"}, Log: slog.New(slog.NewTextHandler(log, nil)),
		Dial:    func(string) (*grpc.ClientConn, error) { return nil, errors.New("no process is dialled here") },
		Serving: func(ok bool) { serving <- ok },
	}, routes{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- g.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the gateway ended: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("the gateway is not ready")
	}
	await(t, "the word about it", log.String, func() bool { return strings.Contains(log.String(), "address already in use") })
	if n := len(serving); n > 0 {
		t.Error("it says that it takes calls while its address is taken")
	}
	must(t, taken.Close())
	if ok := <-serving; !ok {
		t.Error("it does not say that it takes calls")
	}
	// It has no identity, which is told once and not with each who knocks.
	for range 3 {
		conn, err := net.Dial("tcp", taken.Addr().String())
		must(t, err)
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes from a gateway without identity", n)
		}
		must(t, conn.Close())
	}
	if n := strings.Count(log.String(), "gateway without identity"); n != 1 {
		t.Errorf("%d lines about the missing identity, want 1:\n%s", n, log)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the gateway ended with %v", err)
	}
	if ok := <-serving; ok {
		t.Error("it says that it takes calls after its end")
	}
}

func TestBounded_ClosesWhatIsTooMuch(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &bounded{Listener: l, most: 2}
	defer b.Close()
	accepted := make(chan net.Conn, 8)
	go func() { // ends with the listener
		for {
			conn, err := b.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	dial()
	inside := <-accepted
	defer (<-accepted).Close()
	third := dial()
	must(t, third.SetReadDeadline(time.Now().Add(20*time.Second)))
	if _, err := third.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the third connection is open: %v", err)
	}
	must(t, inside.Close())
	_ = inside.Close() // counts once
	fourth := dial()
	conn := <-accepted
	defer conn.Close()
	_, err = fourth.Write([]byte("in"))
	must(t, err)
	got := make([]byte, 2)
	if _, err := conn.Read(got); err != nil || !bytes.Equal(got, []byte("in")) {
		t.Errorf("the fourth connection, after one has left: %q, %v", got, err)
	}
	if n := b.open.Load(); n != 2 {
		t.Errorf("%d connections are counted, want 2", n)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
