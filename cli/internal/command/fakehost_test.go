package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
)

// fakeHost behaves like the sandboxhost of a node whose images do what their
// names say: "exit-3" writes to both outputs and ends with code 3, "serve" runs
// until it is stopped, "missing" cannot be had.
type fakeHost struct {
	stats fakeStats
	sandboxhostv1.UnimplementedSandboxHostServiceServer
	sandboxhostv1.UnimplementedImageServiceServer
	sandboxhostv1.UnimplementedEventServiceServer

	path   string
	server *grpc.Server

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	boxes   map[string]*sandboxhostv1.SandboxState
	output  map[string]*fakeOutput
	images  []*sandboxhostv1.Image
	events  []*sandboxhostv1.Event
	// stuck keeps removed sandboxes from being torn down.
	stuck bool
}

type fakeOutput struct {
	stdout, stderr bytes.Buffer
	closed         bool
}

func newHost(t *testing.T) *fakeHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &fakeHost{
		path: filepath.Join(dir, "h.sock"), changed: make(chan struct{}),
		boxes: map[string]*sandboxhostv1.SandboxState{}, output: map[string]*fakeOutput{},
	}
	h.start(t)
	t.Cleanup(func() { h.server.Stop() })
	return h
}

func (h *fakeHost) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	h.server = grpc.NewServer(grpc.ChainUnaryInterceptor(fault.UnaryServer), grpc.ChainStreamInterceptor(fault.StreamServer))
	sandboxhostv1.RegisterSandboxHostServiceServer(h.server, h)
	sandboxhostv1.RegisterImageServiceServer(h.server, h)
	sandboxhostv1.RegisterStatsServiceServer(h.server, &h.stats)
	sandboxhostv1.RegisterEventServiceServer(h.server, h)
	server := h.server
	go func() { _ = server.Serve(l) }() // ends with Stop
}

// restart cuts all calls, as a crash would.
func (h *fakeHost) restart(t *testing.T) {
	t.Helper()
	h.server.Stop()
	h.start(t)
}

// change runs fn under the lock and wakes everybody who waits.
func (h *fakeHost) change(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *fakeHost) EnsureSandbox(_ context.Context, r *sandboxhostv1.EnsureSandboxRequest) (*sandboxhostv1.EnsureSandboxResponse, error) {
	var err error
	var out *sandboxhostv1.SandboxState
	h.change(func() { out, err = h.ensure(r) })
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.EnsureSandboxResponse{Sandbox: out}, nil
}

func (h *fakeHost) ensure(r *sandboxhostv1.EnsureSandboxRequest) (*sandboxhostv1.SandboxState, error) {
	for _, b := range h.boxes {
		if b.GetName() == r.GetName() && b.GetUid() != r.GetUid() && b.GetManager() == r.GetManager() {
			return nil, fault.WithReason(fault.New(fault.Conflict, "name %s is taken", r.GetName()), "NAME_TAKEN")
		}
	}
	b := h.boxes[r.GetUid()]
	if b == nil {
		b = &sandboxhostv1.SandboxState{
			Uid: r.GetUid(), Name: r.GetName(), Manager: r.GetManager(), AcceptedAt: timestamppb.Now(),
			Status: &resourcev1.SandboxStatus{Node: "node1"},
		}
		h.boxes[r.GetUid()] = b
	}
	if r.GetGeneration() < b.GetGeneration() {
		return nil, fault.WithReason(fault.New(fault.Conflict, "generation %d is stale", r.GetGeneration()), "STALE_GENERATION")
	}
	b.Labels = r.GetLabels()
	b.Generation, b.Spec = r.GetGeneration(), r.GetSpec()
	h.live(b)
	return proto.CloneOf(b), nil
}

// live brings the sandbox to where its spec and its image's name lead.
func (h *fakeHost) live(b *sandboxhostv1.SandboxState) {
	b.Status.ObservedGeneration = b.GetGeneration()
	if b.GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		if b.Status.GetPhase() == resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING {
			h.end(b, 143)
		}
		b.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
		return
	}
	b.Status.Attempt++
	name := b.GetSpec().GetContainers()[0].GetName()
	image := b.GetSpec().GetContainers()[0].GetImage()
	if image == "missing" {
		b.Status.Phase, b.Status.Reason = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED, "STEP_FAILED"
		b.Status.Message = "prepare images: image missing: not present and registry unreachable"
		return
	}
	out := h.outputOf(b.GetUid(), b.Status.GetAttempt())
	b.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	b.Status.Addresses = []string{"10.77.0.2"}
	b.Status.Conditions = []*resourcev1.Condition{{Type: "Ready", State: resourcev1.ConditionState_CONDITION_STATE_TRUE}}
	b.Status.Containers = []*resourcev1.ContainerStatus{{Name: name, StartedAt: timestamppb.Now()}}
	fmt.Fprintf(&out.stdout, "out %s\n", strings.Join(b.GetSpec().GetContainers()[0].GetArgs(), "|"))
	out.stderr.WriteString("err\n")
	if code, ok := strings.CutPrefix(image, "exit-"); ok {
		n, err := strconv.Atoi(code)
		if err != nil {
			panic(err)
		}
		h.end(b, uint32(n))
	}
}

func (h *fakeHost) end(b *sandboxhostv1.SandboxState, code uint32) {
	name := b.GetSpec().GetContainers()[0].GetName()
	b.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	if code != 0 {
		b.Status.Phase = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	}
	e := &resourcev1.ContainerExit{Container: name, Attempt: b.Status.GetAttempt(), Code: code, ExitedAt: timestamppb.Now()}
	b.Status.Containers[0].Exit = e
	b.Status.Exits = append(b.Status.Exits, e)
	h.outputOf(b.GetUid(), b.Status.GetAttempt()).closed = true
}

func (h *fakeHost) outputOf(uid string, attempt uint64) *fakeOutput {
	key := fmt.Sprintf("%s/%d", uid, attempt)
	if h.output[key] == nil {
		h.output[key] = &fakeOutput{}
	}
	return h.output[key]
}

func (h *fakeHost) RemoveSandbox(_ context.Context, r *sandboxhostv1.RemoveSandboxRequest) (*sandboxhostv1.RemoveSandboxResponse, error) {
	h.change(func() {
		if b := h.boxes[r.GetUid()]; b != nil {
			b.Removing = true
			if !h.stuck {
				b.Status.TornDownAt = timestamppb.Now()
			}
		}
	})
	return &sandboxhostv1.RemoveSandboxResponse{}, nil
}

func (h *fakeHost) ForgetSandbox(_ context.Context, r *sandboxhostv1.ForgetSandboxRequest) (*sandboxhostv1.ForgetSandboxResponse, error) {
	h.change(func() { delete(h.boxes, r.GetUid()) })
	return &sandboxhostv1.ForgetSandboxResponse{}, nil
}

func (h *fakeHost) GetSandbox(_ context.Context, r *sandboxhostv1.GetSandboxRequest) (*sandboxhostv1.GetSandboxResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.boxes[r.GetUid()]; b != nil {
		return &sandboxhostv1.GetSandboxResponse{Sandbox: proto.CloneOf(b)}, nil
	}
	return nil, fault.New(fault.NotFound, "sandbox %s: not found", r.GetUid())
}

// ListSandboxes gives pages of two, so that paging is used.
func (h *fakeHost) ListSandboxes(_ context.Context, r *sandboxhostv1.ListSandboxesRequest) (*sandboxhostv1.ListSandboxesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	resp := &sandboxhostv1.ListSandboxesResponse{}
	for _, uid := range h.uids() {
		switch {
		case uid <= r.GetPageToken():
		case len(resp.GetSandboxes()) == 2:
			resp.NextPageToken = resp.GetSandboxes()[1].GetUid()
		default:
			resp.Sandboxes = append(resp.Sandboxes, proto.CloneOf(h.boxes[uid]))
		}
	}
	return resp, nil
}

func (h *fakeHost) uids() []string {
	var uids []string
	for uid := range h.boxes {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

func (h *fakeHost) WatchSandboxes(r *sandboxhostv1.WatchSandboxesRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchSandboxesResponse]) error {
	sent := map[string]*sandboxhostv1.SandboxState{}
	for first := true; ; first = false {
		h.mu.Lock()
		var msgs []*sandboxhostv1.WatchSandboxesResponse
		for _, uid := range h.uids() {
			if b := h.boxes[uid]; (r.GetUid() == "" || r.GetUid() == uid) && !proto.Equal(sent[uid], b) {
				sent[uid] = proto.CloneOf(b)
				msgs = append(msgs, &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Changed{Changed: sent[uid]}})
			}
		}
		for uid, b := range sent {
			if h.boxes[uid] == nil {
				delete(sent, uid)
				msgs = append(msgs, &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Forgotten{Forgotten: b}})
			}
		}
		wake := h.changed
		h.mu.Unlock()
		if first {
			msgs = append(msgs, &sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Synced{Synced: true}})
		}
		for _, m := range msgs {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-wake:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (h *fakeHost) ReadLogs(r *sandboxhostv1.ReadLogsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse]) error {
	at := [2]int64{r.GetStdoutOffset(), r.GetStderrOffset()}
	if r.GetAttempt() == 0 {
		h.mu.Lock()
		r.Attempt = h.boxes[r.GetUid()].GetStatus().GetAttempt()
		if r.GetPrevious() {
			r.Attempt--
		}
		h.mu.Unlock()
	}
	if r.TailLines != nil { // it knows no lines: as if there were none
		h.mu.Lock()
		if out := h.output[fmt.Sprintf("%s/%d", r.GetUid(), r.GetAttempt())]; out != nil {
			at = [2]int64{int64(out.stdout.Len()), int64(out.stderr.Len())}
		}
		h.mu.Unlock()
		for i := range at {
			if err := stream.Send(&sandboxhostv1.ReadLogsResponse{Attempt: r.GetAttempt(), Stream: sandboxhostv1.LogStream(i + 1), Offset: at[i]}); err != nil {
				return err
			}
		}
	}
	for {
		h.mu.Lock()
		out := h.output[fmt.Sprintf("%s/%d", r.GetUid(), r.GetAttempt())]
		if out == nil {
			h.mu.Unlock()
			return fault.New(fault.NotFound, "attempt %d: no output", r.GetAttempt())
		}
		var chunks []*sandboxhostv1.ReadLogsResponse
		for i, buf := range []*bytes.Buffer{&out.stdout, &out.stderr} {
			kind := sandboxhostv1.LogStream(i + 1)
			if only := r.GetStream(); only != 0 && only != kind {
				continue
			}
			if data := bytes.Clone(buf.Bytes()[at[i]:]); len(data) > 0 {
				chunks = append(chunks, &sandboxhostv1.ReadLogsResponse{Attempt: r.GetAttempt(), Stream: kind, Offset: at[i], Data: data})
				at[i] += int64(len(data))
			}
		}
		wake, closed := h.changed, out.closed
		h.mu.Unlock()
		for _, c := range chunks {
			if err := stream.Send(c); err != nil {
				return err
			}
		}
		if closed || !r.GetFollow() {
			return nil
		}
		select {
		case <-wake:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (h *fakeHost) ReadEvents(r *sandboxhostv1.ReadEventsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadEventsResponse]) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(h.events), func(e *sandboxhostv1.Event) bool { return e.GetUid() != r.GetUid() })
	if n := int(r.GetLimit()); n > 0 && len(list) > n {
		list = list[len(list)-n:]
	}
	for _, e := range list {
		if err := stream.Send(&sandboxhostv1.ReadEventsResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

// byName returns a copy of the sandbox, or nil.
func (h *fakeHost) byName(name string) *sandboxhostv1.SandboxState {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.boxes {
		if b.GetName() == name {
			return proto.CloneOf(b)
		}
	}
	return nil
}

func (h *fakeHost) PullImage(r *sandboxhostv1.PullImageRequest, stream grpc.ServerStreamingServer[sandboxhostv1.PullImageResponse]) error {
	if strings.HasPrefix(r.GetImage(), "nowhere") {
		return fault.New(fault.Unavailable, "registry nowhere: no such host")
	}
	image := &sandboxhostv1.Image{Name: r.GetImage(), Digest: "sha256:1", SizeBytes: 2048}
	h.change(func() { h.images = append(h.images, image) })
	return errors.Join(
		stream.Send(&sandboxhostv1.PullImageResponse{DoneBytes: 1024, TotalBytes: 2048}),
		stream.Send(&sandboxhostv1.PullImageResponse{DoneBytes: 2048, TotalBytes: 2048, Image: image}))
}

func (h *fakeHost) ImportImage(stream grpc.ClientStreamingServer[sandboxhostv1.ImportImageRequest, sandboxhostv1.ImportImageResponse]) error {
	var size int64
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if len(msg.GetChunk()) > 64<<10 {
			return fault.New(fault.Invalid, "chunk of %d bytes", len(msg.GetChunk()))
		}
		if bytes.HasPrefix(msg.GetChunk(), []byte("garbage")) {
			return fault.New(fault.Invalid, "it is no archive")
		}
		size += int64(len(msg.GetChunk()))
	}
	image := &sandboxhostv1.Image{Name: "staddle.local/imported:1", Digest: "sha256:2", SizeBytes: size}
	h.change(func() { h.images = append(h.images, image) })
	return stream.SendAndClose(&sandboxhostv1.ImportImageResponse{Images: []*sandboxhostv1.Image{image}})
}

func (h *fakeHost) RemoveImage(_ context.Context, r *sandboxhostv1.RemoveImageRequest) (*sandboxhostv1.RemoveImageResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.IndexFunc(h.images, func(i *sandboxhostv1.Image) bool { return i.GetName() == r.GetImage() })
	if at < 0 {
		return nil, fault.New(fault.NotFound, "remove image %s: it is not present on this node", r.GetImage())
	}
	for _, b := range h.boxes {
		if b.GetSpec().GetContainers()[0].GetImage() == r.GetImage() {
			return nil, fault.WithReason(fault.New(fault.Conflict, "remove image %s: it is in use by sandbox %s", r.GetImage(), b.GetName()), "IMAGE_IN_USE")
		}
	}
	h.images = slices.Delete(h.images, at, at+1)
	return &sandboxhostv1.RemoveImageResponse{Name: r.GetImage()}, nil
}

func (h *fakeHost) ListImages(context.Context, *sandboxhostv1.ListImagesRequest) (*sandboxhostv1.ListImagesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &sandboxhostv1.ListImagesResponse{Images: slices.Clone(h.images)}, nil
}
