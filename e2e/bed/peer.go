package bed

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"staddle.internal/kit/rpc"
)

// ConnAs is a connection to a process of the bed from a user of the machine, who is
// in no group but that of the same number.
func (b *Bed) ConnAs(process string, uid int) *grpc.ClientConn {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	key := fmt.Sprintf("%s as %d", process, uid)
	if b.conns[key] == nil {
		dial := func(context.Context, string) (net.Conn, error) { return DialAs(b.Paths.Socket(process), uid) }
		conn, err := rpc.Dial(b.Paths.Socket(process), rpc.DialConfig{Options: []grpc.DialOption{grpc.WithContextDialer(dial)}})
		b.must(err)
		b.conns[key] = conn
	}
	return b.conns[key]
}

// DialAs connects to a unix socket as ConnAs does: the kernel tells the other end
// who connected, and keeps whoever may not from doing so.
func DialAs(path string, uid int) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	answer := make(chan dialled)
	go func() { // waited for below
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and with it who it was
		conn, err := net.Conn(nil), become(uid)
		if err == nil {
			conn, err = net.Dial("unix", path)
		}
		answer <- dialled{conn, err}
	}()
	d := <-answer
	return d.conn, d.err
}

// become makes the calling thread, and no other, a user for good. The calls of the
// library do so to all threads.
func become(uid int) error {
	id := uintptr(uid)
	for _, call := range []struct {
		name    string
		trap    uintptr
		a, b, c uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 0, 0, 0},
		{"setresgid", unix.SYS_SETRESGID, id, id, id},
		{"setresuid", unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(call.trap, call.a, call.b, call.c); errno != 0 {
			return fmt.Errorf("become user %d: %s: %w", uid, call.name, errno)
		}
	}
	return nil
}
