package copying_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/copying"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inroot"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const uid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// limit bounds every wait.
const limit = 20 * time.Second

type host struct {
	hub *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
}

func (h host) States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState] { return h.hub }

func (h host) Get(uid id.Sandbox) (*sandboxhostv1.SandboxState, error) {
	state, ok := h.hub.Get(uid)
	if !ok {
		return nil, fault.New(fault.NotFound, "sandbox %s: not found", uid)
	}
	return state, nil
}

func box(attempt uint64) *sandboxhostv1.SandboxState {
	return &sandboxhostv1.SandboxState{
		Uid: uid, Name: "box", Spec: &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{Name: "main"}}},
		Status: &resourcev1.SandboxStatus{
			Attempt: attempt, Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING,
			Containers: []*resourcev1.ContainerStatus{{Name: "main", Pid: 7}},
		},
	}
}

// ours is the root of this very process, as that of container main in attempt 3.
type ours struct{}

func (ours) Files(_ context.Context, containerID string) (*inroot.Root, inroot.Identity, error) {
	if containerID != engine.ContainerID(uid, "main", 3) {
		return nil, inroot.Identity{}, fault.New(fault.Conflict, "container %s does not run", containerID)
	}
	who, err := inroot.IdentityOf(os.Getpid())
	if err != nil {
		return nil, who, err
	}
	root, err := inroot.OfProcess(os.Getpid())
	return root, who, err
}

func begin(t *testing.T) (host, sandboxhostv1.CopyServiceClient) {
	t.Helper()
	h := host{watch.New[id.Sandbox, *sandboxhostv1.SandboxState]()}
	h.hub.Set(uid, box(3))
	s := copying.New(h, ours{}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background()) // ends in cleanup
	over, ready := make(chan error, 1), make(chan struct{})
	go func() { over <- s.Run(ctx, func() { close(ready) }) }() // waited for in cleanup
	<-ready
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.StreamInterceptor(fault.StreamServer))
	s.Register(server)
	go func() { _ = server.Serve(l) }() // ends with Stop
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(fault.StreamClient),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v of Run", err)
		}
		_ = conn.Close()
		server.Stop()
	})
	return h, sandboxhostv1.NewCopyServiceClient(conn)
}

func timed(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// stream is a tar stream with one file.
func stream(t *testing.T, name string, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(body))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// in begins a copy and sends bytes.
func in(t *testing.T, c sandboxhostv1.CopyServiceClient, start *sandboxhostv1.CopyInStart, data []byte) grpc.ClientStreamingClient[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse] {
	t.Helper()
	st, err := c.CopyIn(timed(t))
	if err != nil {
		t.Fatal(err)
	}
	start.Uid = uid
	_ = st.Send(&sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_Start{Start: start}}) // the answer says what was wrong
	for len(data) > 0 {
		n := min(len(data), 32<<10)
		_ = st.Send(&sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_Data{Data: data[:n]}})
		data = data[n:]
	}
	return st
}

func end() *sandboxhostv1.CopyInRequest {
	return &sandboxhostv1.CopyInRequest{Frame: &sandboxhostv1.CopyInRequest_DataEnd{DataEnd: true}}
}

func TestCopyIn_MakesWhatCameWhole(t *testing.T) {
	_, c := begin(t)
	dir := t.TempDir()
	body := bytes.Repeat([]byte("x"), 100_000)
	st := in(t, c, &sandboxhostv1.CopyInStart{Path: filepath.Join(dir, "new"), Name: "file"}, stream(t, "file", body))
	if err := st.Send(end()); err != nil {
		t.Fatal(err)
	}
	resp, err := st.CloseAndRecv()
	if err != nil || resp.GetReport().GetEntries() != 1 || resp.GetReport().GetContentBytes() != 100_000 {
		t.Errorf("got %v, %v", resp, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || !bytes.Equal(got, body) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// underWay waits until a copy has begun a file in a folder.
func underWay(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(limit)
	for {
		begun, err := filepath.Glob(filepath.Join(dir, ".staddle-copy-*"))
		if err != nil || len(begun) > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("nothing has begun in %s", dir)
		}
	}
}

// What does not come whole makes nothing, however it breaks, and is never a success. (EXE-4)
func TestCopyIn_EXE4_WhatBreaksMakesNothing(t *testing.T) {
	whole := stream(t, "file", bytes.Repeat([]byte("x"), 100_000))
	for name, c := range map[string]struct {
		start *sandboxhostv1.CopyInStart
		sent  []byte
		then  func(host, grpc.ClientStreamingClient[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse])
		kind  fault.Kind
	}{
		"half, and no more": {&sandboxhostv1.CopyInStart{Name: "file"}, whole[:50_000], nil, fault.Invalid},
		"half that says it is whole": {&sandboxhostv1.CopyInStart{Name: "file"}, whole[:50_000],
			func(_ host, st grpc.ClientStreamingClient[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse]) {
				_ = st.Send(end())
			}, fault.Invalid},
		"its attempt ends": {&sandboxhostv1.CopyInStart{Name: "file"}, whole[:50_000],
			func(h host, _ grpc.ClientStreamingClient[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse]) {
				h.hub.Set(uid, box(4))
			}, fault.Unavailable},
		"another name":      {&sandboxhostv1.CopyInStart{Name: "other"}, whole, nil, fault.Invalid},
		"a name that is up": {&sandboxhostv1.CopyInStart{Name: ".."}, whole, nil, fault.Invalid},
		"no such container": {&sandboxhostv1.CopyInStart{Name: "file", Container: "other"}, whole, nil, fault.NotFound},
	} {
		h, client := begin(t)
		dir := t.TempDir()
		c.start.Path = dir
		st := in(t, client, c.start, c.sent)
		if c.then != nil {
			underWay(t, dir)
			c.then(h, st)
		}
		if resp, err := st.CloseAndRecv(); fault.KindOf(err) != c.kind {
			t.Errorf("%s: got %v, %v, want %v", name, resp, err, c.kind)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "file")); err != nil || len(left) > 0 {
			t.Errorf("%s: made %v, %v", name, left, err)
		}
	}
}

// A copy that nobody reads ends with the attempt of its sandbox; so do all there may be, and then there is room.
func TestCopyOut_EndsWithItsAttempt(t *testing.T) {
	h, c := begin(t)
	file := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<32)); err != nil {
		t.Fatal(err)
	}
	req := &sandboxhostv1.CopyOutRequest{Uid: uid, Path: file}
	var open []grpc.ServerStreamingClient[sandboxhostv1.CopyOutResponse]
	for range copying.MaxCopies {
		st, err := c.CopyOut(timed(t), req)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := st.Recv(); err != nil || len(m.GetData()) == 0 || len(m.GetData()) > 32<<10 {
			t.Fatalf("got %d bytes, %v", len(m.GetData()), err)
		}
		open = append(open, st)
	}
	last := func(req *sandboxhostv1.CopyOutRequest) error {
		st, err := c.CopyOut(timed(t), req)
		for err == nil {
			_, err = st.Recv()
		}
		return err
	}
	if err := last(req); fault.Reason(err) != "TOO_MANY_COPIES" {
		t.Errorf("one more: got %v", err)
	}
	h.hub.Set(uid, box(4))
	for _, st := range open {
		var err error
		for err == nil {
			_, err = st.Recv()
		}
		if fault.Reason(err) != "SANDBOX_ENDED" {
			t.Errorf("got %v", err)
		}
	}
	h.hub.Set(uid, box(3))
	if err := last(&sandboxhostv1.CopyOutRequest{Uid: uid, Path: "/missing/file"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("what is not there: got %v", err)
	}
}
