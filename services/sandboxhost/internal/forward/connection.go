package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// chunk is how much is moved at a time, by the contract.
	chunk = 32 << 10
	// dialLimit bounds a connect: who listens answers at once, unless its queue is full.
	dialLimit = 10 * time.Second
)

// loopbacks are where a port is tried, in this order.
var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// stream is a call.
type stream = grpc.BidiStreamingServer[sandboxhostv1.ForwardRequest, sandboxhostv1.ForwardResponse]

// halves is a connection of which each direction ends by itself; a *net.TCPConn.
type halves interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// Forward carries one connection.
func (s *Server) Forward(st stream) error {
	first, err := st.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return fault.New(fault.Invalid, "the first message is no start")
	}
	if err != nil {
		return err
	}
	uid, port := id.Sandbox(first.GetStart().GetUid()), uint16(first.GetStart().GetPort()) // bounded by the contract
	ctx, state, leave, err := s.calls.Enter(st.Context(), uid)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := s.dial(ctx, uid, port)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), closed(conn))
	}
	if err != nil {
		return err
	}
	attempt := state.GetStatus().GetAttempt()
	s.log.Debug("port forwarded", uid.Attr(), logging.Attempt(int64(attempt)))
	return s.carry(ctx, cancel, st, conn, attempt)
}

// dial connects to the first loopback address at which somebody listens.
func (s *Server) dial(ctx context.Context, uid id.Sandbox, port uint16) (halves, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var first error
	for _, address := range loopbacks {
		conn, err := s.dialer.Dial(ctx, uid, netip.AddrPortFrom(address, port))
		if err == nil {
			both, ok := conn.(halves)
			if !ok {
				return nil, errors.Join(fmt.Errorf("connect to port %d of sandbox %s: got a %T", port, uid, conn), conn.Close())
			}
			return both, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(first, syscall.ECONNREFUSED) {
		return nil, fault.WithReason(fault.New(fault.Unavailable, "nobody listens at port %d of the sandbox's loopback", port), "CONNECTION_REFUSED")
	}
	if _, known := errors.AsType[fault.Kind](first); known {
		return nil, first
	}
	return nil, broken(fmt.Errorf("connect to port %d: %w", port, first))
}

// closed closes a connection that may not be there.
func closed(conn halves) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// broken is the error of a connection that did not end well.
func broken(err error) error {
	return fault.WithReason(fault.New(fault.Unavailable, "the connection broke: %w", err), "CONNECTION_BROKEN")
}

// carry moves bytes both ways until both directions have ended, or the connection breaks.
func (s *Server) carry(ctx context.Context, cancel context.CancelCauseFunc, st stream, conn halves, attempt uint64) error {
	release := context.AfterFunc(ctx, func() { // wakes who reads or writes; the other side is to see that it broke
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
	defer func() {
		if release() {
			_ = conn.Close() // both directions have ended: nothing is lost with it
		}
	}()
	if err := st.Send(&sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_Connected{
		Connected: &sandboxhostv1.ForwardConnected{Attempt: attempt},
	}}); err != nil {
		cancel(err)
		return err
	}
	heard, told := make(chan struct{}), make(chan struct{})
	s.pumps.Go(func() { // ends with the stream, which ends with this call; Run waits for it
		defer close(heard)
		if err := inward(st, conn); err != nil {
			cancel(err)
		}
	})
	s.pumps.Go(func() { // the same
		defer close(told)
		if err := outward(conn, st); err != nil {
			cancel(err)
		}
	})
	for _, over := range []chan struct{}{heard, told} {
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx) // nil while nothing has cancelled it
}

// inward moves what the caller sends into the sandbox, until no more comes.
func inward(st stream, conn halves) error {
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return fault.New(fault.Invalid, "the stream ended before its data did: send data_end")
		}
		if err != nil {
			return err
		}
		switch f := m.GetFrame().(type) {
		case *sandboxhostv1.ForwardRequest_Data:
			_, err = conn.Write(f.Data)
		case *sandboxhostv1.ForwardRequest_DataEnd:
			err = conn.CloseWrite()
		default:
			return fault.New(fault.Invalid, "a second start: a stream is one connection")
		}
		if err != nil {
			return broken(err)
		}
		if m.GetDataEnd() {
			return nil
		}
	}
}

// outward moves what the sandbox sends to the caller.
func outward(conn halves, st stream) error {
	buf := make([]byte, chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := st.Send(&sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return st.Send(&sandboxhostv1.ForwardResponse{Frame: &sandboxhostv1.ForwardResponse_DataEnd{DataEnd: true}})
		case err != nil:
			return broken(err)
		}
	}
}
