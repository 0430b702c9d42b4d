package exec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// fakeProcess echoes its input, and ends when it is told or when its input does.
type fakeProcess struct {
	in      *io.PipeReader
	inW     *io.PipeWriter
	deaf    bool // reads nothing
	mute    bool // has no input
	closed  chan struct{}
	ended   chan engine.Ended
	mu      sync.Mutex
	signals []syscall.Signal
	sizes   []engine.TerminalSize
}

func newFake(deaf bool) *fakeProcess {
	p := &fakeProcess{deaf: deaf, closed: make(chan struct{}), ended: make(chan engine.Ended, 1)}
	p.in, p.inW = io.Pipe()
	return p
}

func (p *fakeProcess) Stdin() io.Writer {
	if p.mute {
		return nil
	}
	return p.inW
}

func (p *fakeProcess) EndStdin(context.Context) error { return p.inW.Close() }
func (p *fakeProcess) Stderr() io.Reader              { return strings.NewReader("err") }
func (p *fakeProcess) Drain()                         {}
func (p *fakeProcess) Stdout() io.Reader {
	if p.deaf {
		return nil
	}
	return readerFunc(func(b []byte) (int, error) {
		n, err := p.in.Read(b)
		if err != nil {
			select {
			case p.ended <- engine.Ended{Code: 4}:
			default: // it was told
			}
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func (p *fakeProcess) Resize(_ context.Context, s engine.TerminalSize) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = append(p.sizes, s)
	return nil
}

func (p *fakeProcess) Signal(_ context.Context, s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signals = append(p.signals, s)
	p.ended <- engine.Ended{Code: uint32(128 + s)}
	return nil
}

func (p *fakeProcess) Wait(ctx context.Context) (engine.Ended, error) {
	select {
	case e := <-p.ended:
		return e, nil
	case <-ctx.Done():
		return engine.Ended{}, context.Cause(ctx)
	}
}

func (p *fakeProcess) Close(context.Context) error {
	close(p.closed)
	return errors.Join(p.in.Close(), p.inW.Close())
}

// fakeRuntime runs one process.
type fakeRuntime struct {
	process *fakeProcess
	asked   engine.Beside
	left    []engine.LeftProcess
	attach  func(engine.Main) (engine.Attached, error)
}

func (r *fakeRuntime) Open(_ context.Context, b engine.Beside) (engine.Process, error) {
	r.asked = b
	return r.process, nil
}

func (r *fakeRuntime) AdoptInput(context.Context) error { return nil }

func (r *fakeRuntime) Attach(_ context.Context, m engine.Main) (engine.Attached, error) {
	return r.attach(m)
}

func (r *fakeRuntime) Left() ([]engine.LeftProcess, error) { return r.left, nil }

// oneSandbox is a host with a sandbox that runs.
type oneSandbox struct{ state *sandboxhostv1.SandboxState }

func (o oneSandbox) Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error) {
	if string(uid) != o.state.GetUid() {
		return nil, fault.New(fault.NotFound, "sandbox %s: not found", uid)
	}
	return o.state, nil
}

func (oneSandbox) States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState] { return nil }

const uid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func box() *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Uid: uid, Name: "box", Spec: &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{Name: "main"}}},
		Status: &resourcev1.SandboxStatus{
			Attempt: 3, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING,
			Containers: []*resourcev1.ContainerStatus{{Name: "main", Pid: 7}},
		},
	}
}

// wire is a stream without a network.
type wire[Request, Response proto.Message] struct {
	ctx  context.Context //nolint:containedctx // a stream has one
	up   chan Request
	down chan Response
}

func newWire[Request, Response proto.Message](ctx context.Context) *wire[Request, Response] {
	return &wire[Request, Response]{ctx, make(chan Request), make(chan Response)}
}

func (w *wire[_, _]) Context() context.Context     { return w.ctx }
func (w *wire[_, _]) SetHeader(metadata.MD) error  { return nil }
func (w *wire[_, _]) SendHeader(metadata.MD) error { return nil }
func (w *wire[_, _]) SetTrailer(metadata.MD)       {}
func (w *wire[_, _]) SendMsg(any) error            { return nil }
func (w *wire[_, _]) RecvMsg(any) error            { return nil }

func (w *wire[_, Response]) Send(m Response) error {
	select {
	case w.down <- proto.CloneOf(m): // as the network does
		return nil
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}

func (w *wire[Request, _]) Recv() (m Request, err error) {
	select {
	case m, ok := <-w.up:
		if !ok {
			return m, io.EOF
		}
		return m, nil
	case <-w.ctx.Done():
		return m, context.Cause(w.ctx)
	}
}

// call is one call of Exec with its server.
type call struct {
	*wire[*sandboxhostv1.ExecRequest, *sandboxhostv1.ExecResponse]
	leave  context.CancelFunc
	result chan error
}

// inBubble runs a server and one call with a process.
func inBubble(t *testing.T, p *fakeProcess, start *sandboxhostv1.ExecStart, f func(*fakeRuntime, *call)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{process: p}
		s := New(oneSandbox{box()}, runtime, nil, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		over, ready := make(chan error, 1), make(chan struct{})
		go func() { over <- s.Run(ctx, func() { close(ready) }) }() // waited for below
		<-ready
		calling, leave := context.WithCancel(t.Context())
		c := &call{newWire[*sandboxhostv1.ExecRequest, *sandboxhostv1.ExecResponse](calling), leave, make(chan error, 1)}
		go func() { // ends with the call, which f and leave end
			c.result <- s.Exec(c.wire)
			leave() // as a server does with the stream's context
		}()
		start.Uid = uid
		c.up <- &sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Start{Start: start}}
		f(runtime, c)
		leave()
		stop()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v of Run, want it cancelled", err)
		}
		select {
		case <-p.closed:
		default:
			t.Error("the process was not closed")
		}
		if len(s.open.counts) > 0 {
			t.Errorf("still counted: %v", s.open.counts)
		}
	})
}

func input(b string) *sandboxhostv1.ExecRequest {
	return &sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Stdin{Stdin: []byte(b)}}
}

func TestServer_CarriesAllAndEndsWithTheExit(t *testing.T) {
	start := &sandboxhostv1.ExecStart{Command: []string{"cat"}, Stdin: true, Terminal: &sandboxhostv1.TerminalSize{Columns: 9, Rows: 5}}
	inBubble(t, newFake(false), start, func(r *fakeRuntime, c *call) {
		if m := <-c.down; m.GetStarted().GetAttempt() != 3 {
			t.Errorf("got %v first", m)
		}
		if r.asked.ContainerID != engine.ContainerID(uid, "main", 3) || *r.asked.Terminal != (engine.TerminalSize{Columns: 9, Rows: 5}) {
			t.Errorf("asked for %+v", r.asked)
		}
		go func() { // ends with the call
			c.up <- input("one ")
			c.up <- &sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Resize{Resize: &sandboxhostv1.TerminalSize{Columns: 1, Rows: 2}}}
			c.up <- input("two")
			c.up <- &sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_StdinEnd{StdinEnd: true}}
		}()
		var out, errs string
		var taken uint64
		for {
			m := <-c.down
			out, errs = out+string(m.GetStdout()), errs+string(m.GetStderr())
			taken = max(taken, m.GetStdinTaken())
			if m.GetExit() != nil {
				if m.GetExit().GetCode() != 4 || m.GetExit().GetReason() != "" {
					t.Errorf("got exit %v", m.GetExit())
				}
				break
			}
		}
		if err := <-c.result; err != nil || out != "one two" || errs != "err" || taken > 7 {
			t.Errorf("got %q, %q, %d taken, %v", out, errs, taken, err)
		}
		if len(r.process.sizes) != 1 {
			t.Errorf("got sizes %v", r.process.sizes)
		}
	})
}

func TestServer_ASignalPassesInputThatNobodyReads(t *testing.T) {
	inBubble(t, newFake(true), &sandboxhostv1.ExecStart{Command: []string{"sleep"}, Stdin: true}, func(_ *fakeRuntime, c *call) {
		go func() { // ends with the call
			for range window / chunk {
				c.up <- input(strings.Repeat("x", chunk))
			}
			c.up <- &sandboxhostv1.ExecRequest{Frame: &sandboxhostv1.ExecRequest_Signal{Signal: 15}}
		}()
		for {
			if m := <-c.down; m.GetExit() != nil {
				if m.GetExit().GetCode() != 143 {
					t.Errorf("got %v", m)
				}
				break
			}
		}
		if err := <-c.result; err != nil {
			t.Error(err)
		}
	})
}

func TestServer_EndsTheProcessOfACallerWhoGoes(t *testing.T) {
	for _, deaf := range []bool{true, false} {
		inBubble(t, newFake(deaf), &sandboxhostv1.ExecStart{Command: []string{"sleep"}, Stdin: true}, func(_ *fakeRuntime, c *call) {
			<-c.down
			c.leave()
			if err := <-c.result; err == nil {
				t.Error("got no error of a call whose caller has gone")
			}
		})
	}
}

func TestServer_RefusesWhatMakesNoSense(t *testing.T) {
	for name, m := range map[string]*sandboxhostv1.ExecRequest{
		"a second start":      {Frame: &sandboxhostv1.ExecRequest_Start{Start: &sandboxhostv1.ExecStart{}}},
		"input without stdin": input("x"),
	} {
		p := newFake(true)
		start := &sandboxhostv1.ExecStart{Command: []string{"sleep"}, Stdin: true}
		if name != "a second start" {
			start.Stdin, p.mute = false, true
		}
		inBubble(t, p, start, func(_ *fakeRuntime, c *call) {
			<-c.down
			go func() { // ends with the call
				select {
				case c.up <- m:
				case <-c.ctx.Done():
				}
			}()
			for open := true; open; {
				select {
				case <-c.down:
				case err := <-c.result:
					open = false
					if fault.KindOf(err) != fault.Invalid {
						t.Errorf("%s: got %v, want it refused", name, err)
					}
				}
			}
		})
	}
}

func TestPlaceOf_WantsAContainerThatRuns(t *testing.T) {
	if got, err := placeOf(box(), ""); err != nil || got.attempt != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	stopped := box()
	stopped.Status.Phase, stopped.Status.Message = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, "somebody stopped it"
	stopped.Status.Containers[0].Pid = 0
	_, err := placeOf(stopped, "main")
	if fault.Reason(err) != "NOT_RUNNING" || !strings.Contains(err.Error(), "its phase is STOPPED: somebody stopped it") {
		t.Errorf("got %v", err)
	}
	if _, err := placeOf(box(), "other"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestInbox_HoldsBackAWriterAndKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInbox()
		const chunks = 40
		var put int
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := range chunks {
				if err := i.put(t.Context(), bytes.Repeat([]byte{byte(n)}, chunk)); err != nil {
					t.Error(err)
				}
				put++
			}
			i.end()
		})
		synctest.Wait()
		if put != window/chunk {
			t.Errorf("took %d chunks in advance, want %d", put, window/chunk)
		}
		var got []byte
		buf := make([]byte, 1000)
		for {
			n, err := i.take(t.Context(), buf)
			got = append(got, buf[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
		}
		wg.Wait()
		for n := range chunks {
			if got[n*chunk] != byte(n) || got[(n+1)*chunk-1] != byte(n) {
				t.Fatalf("chunk %d is out of order", n)
			}
		}
		if len(got) != chunks*chunk {
			t.Errorf("got %d bytes", len(got))
		}
	})
}
