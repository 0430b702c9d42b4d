package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
)

// samples are messages that a proxy which looked into them would change or refuse:
// none of them but the first is the canonical form of any message.
func samples() []string {
	return []string{"", "\x00", "\xff\xff\xff", "\x08\x80\x00\x08\x01", strings.Repeat("\xfe", 1<<20), "end"}
}

func TestForward_EveryKindOfCallPassesByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		r := newRig(t, func(method string, ss grpc.ServerStream) error {
			got = nil
			for {
				text, err := receive(ss)
				if errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
				got = append(got, text)
				if strings.HasSuffix(method, "Say") || strings.HasSuffix(method, "Flow") {
					break
				}
			}
			answers := []string{"sum"}
			if strings.HasSuffix(method, "Flow") || strings.HasSuffix(method, "Talk") {
				answers = samples()
			}
			for _, text := range answers {
				send(t, ss, text)
			}
			return nil
		})
		conn := r.as(alice)
		for _, c := range []struct {
			method        string
			sends, wanted []string
		}{
			{"/test.Echo/Say", []string{"\x08\x80\x00"}, []string{"sum"}},
			{"/test.Echo/Collect", samples(), []string{"sum"}},
			{"/test.Echo/Flow", []string{"\xff"}, samples()},
			{"/test.Echo/Talk", samples(), samples()}, // which this gateway has never heard of
			{"/test.Echo/Collect", nil, []string{"sum"}},
		} {
			ss := open(t, t.Context(), conn, c.method)
			for _, text := range c.sends {
				send(t, ss, text)
			}
			must(t, ss.CloseSend())
			var answers []string
			for {
				text, err := receive(ss)
				if errors.Is(err, io.EOF) {
					break
				}
				must(t, err)
				answers = append(answers, text)
			}
			if !slices.Equal(got, c.sends) {
				t.Errorf("%s: the process got %d messages, want %d as they were sent", c.method, len(got), len(c.sends))
			}
			if !slices.Equal(answers, c.wanted) {
				t.Errorf("%s: the caller got %d messages, want %d as they were sent", c.method, len(answers), len(c.wanted))
			}
		}
	})
}

func TestForward_ConversationGoesBackAndForth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		ss := open(t, t.Context(), r.as(alice), "/test.Echo/Talk")
		for i := range 1000 {
			want := fmt.Sprint("message ", i)
			send(t, ss, want)
			if got, err := receive(ss); err != nil || got != want {
				t.Fatalf("got %q, %v, want %q", got, err, want)
			}
		}
		must(t, ss.CloseSend())
		if _, err := receive(ss); !errors.Is(err, io.EOF) {
			t.Errorf("after both ends are done: %v", err)
		}
	})
}

// What the caller sees of a call that fails is the same with and without a gateway.
func TestForward_HeadersTrailersAndStatusPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := status.FromProto(status.New(codes.Code(77), "no: ö\n%\x01").Proto())
		full := said.Proto()
		full.Details = []*anypb.Any{{TypeUrl: "type.example/unknown.Type", Value: []byte{1, 2, 0xff}}, {TypeUrl: "", Value: nil}}
		said = status.FromProto(full)
		var got metadata.MD
		r := newRig(t, func(method string, ss grpc.ServerStream) error {
			got, _ = metadata.FromIncomingContext(ss.Context())
			if method == flow {
				must(t, ss.SendHeader(metadata.Pairs("said", "one", "said", "two", "blob-bin", "\x00\xff")))
				send(t, ss, "first")
			}
			ss.SetTrailer(metadata.Pairs("end", "a", "end-bin", "\x01\x02"))
			return said.Err()
		})
		look := func(conn *grpc.ClientConn, method string) string {
			t.Helper()
			ctx := metadata.AppendToOutgoingContext(t.Context(), "asks", "x", "asks", "y", "key-bin", "\xfe\x00")
			ss := open(t, ctx, conn, method)
			header, err := ss.Header()
			must(t, err)
			var answers []string
			for {
				text, err := receive(ss)
				if err != nil {
					want, _ := status.FromError(err)
					raw, marshalErr := proto.MarshalOptions{Deterministic: true}.Marshal(want.Proto())
					must(t, marshalErr)
					delete(header, "content-type")
					return fmt.Sprintf("asked %q %q; header %q; answers %q; trailer %q; status %x",
						got["asks"], got["key-bin"], header, answers, ss.Trailer(), raw)
				}
				answers = append(answers, text)
			}
		}
		straight, through := r.straight(), r.as(alice)
		for _, method := range []string{echo, flow} {
			if want, got := look(straight, method), look(through, method); got != want || !strings.Contains(want, "756e6b6e6f776e") {
				t.Errorf("%s: through the gateway\n%s\nwant\n%s", method, got, want)
			}
		}
	})
}

// A watch that has nothing to say yet is answered all the same.
func TestForward_HeaderComesBeforeTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(_ string, ss grpc.ServerStream) error {
			must(t, ss.SendHeader(metadata.Pairs("watching", "yes")))
			<-ss.Context().Done()
			return ss.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		header, err := open(t, ctx, r.as(alice), flow).Header()
		if err != nil || !slices.Equal(header["watching"], []string{"yes"}) {
			t.Errorf("got header %v, %v", header, err)
		}
	})
}

func TestForward_DeadlinePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan time.Duration, 1)
		ended := make(chan error, 1)
		r := newRig(t, func(_ string, ss grpc.ServerStream) error {
			at, ok := ss.Context().Deadline()
			if !ok {
				at = time.Now()
			}
			left <- time.Until(at)
			<-ss.Context().Done()
			ended <- ss.Context().Err()
			return ss.Context().Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		_, err := say(ctx, r.as(alice), echo, "")
		if got := <-left; got <= 6900*time.Millisecond || got > 7*time.Second {
			t.Errorf("the process has %s left, want 7s", got)
		}
		if got := <-ended; !errors.Is(got, context.DeadlineExceeded) && !errors.Is(got, context.Canceled) {
			t.Errorf("the call ended at the process by %v", got)
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
	})
}

func TestForward_EndsFromEverySide(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *rig, cancel context.CancelFunc, conn *grpc.ClientConn, finish chan error)
		want codes.Code
		says string
	}{
		{"the caller cancels", func(_ *rig, cancel context.CancelFunc, _ *grpc.ClientConn, _ chan error) { cancel() }, codes.Canceled, ""},
		{"the caller is gone", func(_ *rig, _ context.CancelFunc, conn *grpc.ClientConn, _ chan error) { _ = conn.Close() }, codes.Canceled, ""},
		{
			"the process ends it",
			func(_ *rig, _ context.CancelFunc, _ *grpc.ClientConn, finish chan error) {
				finish <- status.Error(codes.Aborted, "enough")
			},
			codes.Aborted, "enough",
		},
		{
			"the process is gone", func(r *rig, _ context.CancelFunc, _ *grpc.ClientConn, _ chan error) { r.target.die() },
			codes.Unavailable, "target does not answer",
		},
		{
			"the gateway stops", func(r *rig, _ context.CancelFunc, _ *grpc.ClientConn, _ chan error) { r.stop() },
			codes.Unavailable, "the gateway is stopping",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				finish, ended := make(chan error, 1), make(chan struct{})
				r := newRig(t, func(_ string, ss grpc.ServerStream) error {
					defer close(ended)
					if _, err := receive(ss); err != nil {
						return err
					}
					send(t, ss, "begun")
					select {
					case err := <-finish:
						return err
					case <-ss.Context().Done():
						return ss.Context().Err()
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				conn := r.as(alice)
				ss := open(t, ctx, conn, flow)
				send(t, ss, "begin")
				_, err := receive(ss)
				must(t, err)
				began := time.Now()
				c.end(r, cancel, conn, finish)
				for err == nil { // what is still on its way
					_, err = receive(ss)
				}
				if status.Code(err) != c.want || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the caller sees %v, want %v %q", err, c.want, c.says)
				}
				<-ended
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("it took %s until both ends knew", took)
				}
			})
		})
	}
}

// A caller that goes on sending learns how the process ended the call.
func TestForward_ProcessEndsWhileTheCallerSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(_ string, ss grpc.ServerStream) error {
			_, err := receive(ss)
			must(t, err)
			return status.Error(codes.OutOfRange, "one is enough")
		})
		ss := open(t, t.Context(), r.as(alice), "/test.Echo/Collect")
		data := make([]byte, 32<<10)
		var err error
		for range 10_000 {
			if err = ss.SendMsg(&data); err != nil {
				break
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatalf("sending: %v, want the end", err)
		}
		if _, err := receive(ss); status.Code(err) != codes.OutOfRange {
			t.Errorf("got %v, want the status of the process", err)
		}
	})
}

func TestForward_WhoIsSlowSlowsDownTheOther(t *testing.T) {
	const size, all = 64 << 10, 200 // 12.5 MiB
	for _, c := range []struct {
		name   string
		method string
	}{{"the process", "/test.Echo/Collect"}, {"the caller", flow}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				pour := func(s interface{ SendMsg(any) error }) error {
					data := make([]byte, size)
					for range all {
						if err := s.SendMsg(&data); err != nil {
							return err
						}
						sent.Add(1)
					}
					return nil
				}
				drink := func(s interface{ RecvMsg(any) error }) (n int, err error) {
					for {
						if _, err := receive(s); errors.Is(err, io.EOF) {
							return n, nil
						} else if err != nil {
							return n, err
						}
						n++
					}
				}
				goOn := make(chan struct{})
				r := newRig(t, func(method string, ss grpc.ServerStream) error {
					if method == flow {
						return pour(ss)
					}
					<-goOn
					n, err := drink(ss)
					send(t, ss, fmt.Sprint(n))
					return err
				})
				ss := open(t, t.Context(), r.as(alice), c.method)
				if c.method != flow {
					go func() { // ends when all is sent
						if err := errors.Join(pour(ss), ss.CloseSend()); err != nil {
							t.Error(err)
						}
					}()
				}
				synctest.Wait() // nothing moves any more
				if n := sent.Load(); n == 0 || n > all/4 {
					t.Errorf("%d of %d messages were taken while nobody reads", n, all)
				}
				close(goOn)
				if c.method == flow {
					if n, err := drink(ss); err != nil || n != all {
						t.Errorf("%d messages arrived, %v, want %d", n, err, all)
					}
				} else if n, err := receive(ss); err != nil || n != fmt.Sprint(all) {
					t.Errorf("%s messages arrived, %v, want %d", n, err, all)
				}
			})
		})
	}
}

func TestForward_HundredStreamsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		conn := r.as(alice)
		streams := make([]grpc.ClientStream, 100)
		for i := range streams {
			streams[i] = open(t, t.Context(), conn, "/test.Echo/Talk")
		}
		for round := range 20 {
			for i, ss := range streams {
				send(t, ss, fmt.Sprint(i, " ", round))
			}
			for i, ss := range streams {
				if got, err := receive(ss); err != nil || got != fmt.Sprint(i, " ", round) {
					t.Fatalf("stream %d, round %d: got %q, %v", i, round, got, err)
				}
			}
		}
		for _, ss := range streams {
			must(t, ss.CloseSend())
			if _, err := receive(ss); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		}
	})
}

func TestForward_ProcessThatIsAwaySaysWhichAndWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		conn := r.as(alice)
		if got, err := say(t.Context(), conn, echo, "before"); err != nil || got != "before" {
			t.Fatalf("got %q, %v", got, err)
		}
		r.target.die()
		synctest.Wait()
		_, err := say(t.Context(), conn, echo, "meanwhile")
		if err = fault.FromStatus(err); fault.KindOf(err) != fault.Unavailable || fault.Reason(err) != "PROCESS_DOWN" ||
			!strings.HasSuffix(err.Error(), "target does not answer: dial unix /run/target.sock: connect: connection refused") {
			t.Errorf("got %v %v, want that target is away and why", fault.KindOf(err), err)
		}
		if got, err := say(t.Context(), conn, anywhere, "neighbour"); err != nil || got != "neighbour" {
			t.Errorf("another process: %q, %v", got, err)
		}
		r.target.start()
		time.Sleep(time.Second) // of the bubble: longer than a redial waits
		if got, err := say(t.Context(), conn, echo, "after"); err != nil || got != "after" {
			t.Errorf("after its restart: %q, %v", got, err)
		}
	})
}

// A process that says itself that it is not available is believed as it is.
func TestForward_UnavailableOfTheProcessIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(string, grpc.ServerStream) error {
			return fault.ToStatus(fault.WithReason(fault.New(fault.Unavailable, "recovering 3 volumes"), "NOT_READY"))
		})
		_, err := say(t.Context(), r.as(alice), echo, "")
		if err = fault.FromStatus(err); fault.Reason(err) != "NOT_READY" || err.Error() != "recovering 3 volumes" {
			t.Errorf("got %v %q", err, fault.Reason(err))
		}
	})
}

func TestForward_ClaimsFromOutsideAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got metadata.MD
		r := newRig(t, func(_ string, ss grpc.ServerStream) error {
			got, _ = metadata.FromIncomingContext(ss.Context())
			send(t, ss, "")
			return nil
		})
		ctx := metadata.AppendToOutgoingContext(t.Context(),
			rpc.CallerKey, "spiffe://staddle.test/user/root", rpc.CallerKey, "spiffe://staddle.test/coordinator/c1", "STADDLE-Caller", "x",
			rpc.AsKey, "supervisor", ProcessKey, "target", "staddle-anything", "x", "traceparent", "00-1-2-01", "kept", "a", "kept", "b")
		_, err := say(ctx, r.as(alice), echo, "")
		must(t, err)
		for _, key := range []string{":authority", "content-type", "user-agent", "grpc-accept-encoding"} {
			delete(got, key) // of the last connection
		}
		want := map[string][]string{
			rpc.CallerKey: {alice}, rpc.AsKey: {self}, "traceparent": {"00-1-2-01"}, "kept": {"a", "b"},
		}
		if got := map[string][]string(got); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the process got %q, want %q", got, want)
		}
	})
}

func TestForward_Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		conn := r.as(alice)
		most := strings.Repeat("x", rpc.MaxMessageSize)
		if got, err := say(t.Context(), conn, echo, most); err != nil || got != most {
			t.Errorf("the largest message: %d bytes came back, %v", len(got), err)
		}
		if _, err := say(t.Context(), conn, echo, most+"x"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message that is too large: %v", err)
		}
		large := metadata.AppendToOutgoingContext(t.Context(), "large", strings.Repeat("x", maxHeaders))
		if _, err := say(large, conn, echo, ""); err == nil {
			t.Error("headers that are too large are passed on")
		}
		if got, err := say(t.Context(), conn, echo, "still"); err != nil || got != "still" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	})
}

func TestForward_CallsOfACallerAreCountedOverItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, 3, echoes)
		first, second, other := r.as(alice), r.as(alice), r.as("spiffe://staddle.test/user/bob")
		var held []grpc.ClientStream
		for _, conn := range []*grpc.ClientConn{first, second, first} {
			ss := open(t, t.Context(), conn, "/test.Echo/Talk")
			send(t, ss, "x")
			_, err := receive(ss)
			must(t, err)
			held = append(held, ss)
		}
		_, err := say(t.Context(), second, echo, "x")
		if err = fault.FromStatus(err); fault.KindOf(err) != fault.Unavailable || fault.Reason(err) != "TOO_MANY_CALLS" {
			t.Errorf("one too many: %v %v", fault.KindOf(err), err)
		}
		if got, err := say(t.Context(), other, echo, "x"); err != nil || got != "x" {
			t.Errorf("somebody else: %q, %v", got, err)
		}
		must(t, held[0].CloseSend())
		_, _ = receive(held[0])
		synctest.Wait()
		if got, err := say(t.Context(), second, echo, "x"); err != nil || got != "x" {
			t.Errorf("after one has ended: %q, %v", got, err)
		}
	})
}

func TestForward_WhatIsNotListedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(string, grpc.ServerStream) error { panic("a call that is refused came through") })
		for method, says := range map[string]string{
			"/staddle.storage.v1.StorageService/DeleteVolume": "staddle.storage.v1.StorageService",
			"/grpc.health.v1.Health/Check":                    "grpc.health.v1.Health", // not on this list
			"/nonsense":                                       "malformed",
		} {
			_, err := say(t.Context(), r.as(alice), method, "")
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want it refused with a word about %q", method, err, says)
			}
			if method == "/nonsense" {
				continue
			}
			err = fault.FromStatus(err)
			if fault.KindOf(err) != fault.Denied || fault.Reason(err) != "NOT_LISTED" || !strings.Contains(err.Error(), "test.Echo, test.Common") {
				t.Errorf("%s: %v %q %v, want Denied with the list", method, fault.KindOf(err), fault.Reason(err), err)
			}
		}
	})
}

func TestStop_CallsInFlightHaveTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		want  codes.Code
	}{{"one that is quick", time.Second, codes.OK}, {"one that takes for ever", hour, codes.Unavailable}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := make(chan struct{})
				r := newRig(t, func(_ string, ss grpc.ServerStream) error {
					close(begun)
					select {
					case <-time.After(c.takes):
						send(t, ss, "done")
						return nil
					case <-ss.Context().Done():
						return ss.Context().Err()
					}
				})
				conn, done := r.as(alice), make(chan error, 1)
				go func() {
					_, err := say(t.Context(), conn, echo, "")
					done <- err
				}()
				<-begun
				began := time.Now()
				r.stop()
				if took := time.Since(began); took > StopTimeout {
					t.Errorf("the stop took %s", took)
				}
				if err := <-done; status.Code(err) != c.want {
					t.Errorf("the call ended with %v, want %v", err, c.want)
				}
			})
		})
	}
}
