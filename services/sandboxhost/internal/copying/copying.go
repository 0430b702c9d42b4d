// Package copying carries files into and out of containers that run: CopyService over tar
// streams.
//
// A copy is one call. The folder that it works in is opened once, as the container's
// programs would find it, and nothing leads out of that. It ends with the attempt of its sandbox,
// because an open folder keeps a disk from being unmounted. It must hold no rule about how
// sandboxes live, and never run a program of the container. Beside the trail, it comes after a
// person's command and before the engine.
package copying

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/tartree"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/inroot"
	"staddle.internal/services/sandboxhost/internal/tied"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// MaxCopies is how many copies may be under way on a node: each has up to 256 files open.
	MaxCopies = 16
	// chunk is how much goes into one message, by the contract.
	chunk = 32 << 10
)

// Files opens the file systems of containers; a *containerd.Engine.
type Files interface {
	// Files opens the root of a container that runs, as its main process sees it. The caller closes it.
	Files(ctx context.Context, containerID string) (*inroot.Root, inroot.Identity, error)
}

// Server implements CopyService.
type Server struct {
	sandboxhostv1.UnimplementedCopyServiceServer
	calls *tied.Calls
	files Files
	log   *slog.Logger
	work  sync.WaitGroup
}

// New returns the service. It does nothing before Run.
func New(h tied.Host, files Files, log *slog.Logger) *Server {
	limit := tied.Limit{Node: MaxCopies, What: "copies under way", Reason: "TOO_MANY_COPIES"}
	return &Server{calls: tied.New(h, limit), files: files, log: log}
}

// Register serves it.
func (s *Server) Register(on grpc.ServiceRegistrar) { sandboxhostv1.RegisterCopyServiceServer(on, s) }

// Run ends copies whose sandboxes have ended, and all when ctx does.
func (s *Server) Run(ctx context.Context, ready func()) error {
	defer s.work.Wait()
	return s.calls.Run(ctx, ready)
}

// copyWork is what one copy does, in the file system of a container.
type copyWork func(ctx context.Context, root *inroot.Root, who inroot.Identity) (tartree.Report, error)

// do does the work of one call. It returns when that is done, or when ctx ends: then
// whatever waits for the stream ends with that.
func (s *Server) do(ctx context.Context, uid, container string, work copyWork) (tartree.Report, error) {
	ctx, state, leave, err := s.calls.Enter(ctx, id.Sandbox(uid))
	if err != nil {
		return tartree.Report{}, err
	}
	name, err := host.ContainerOf(state, container)
	if err != nil {
		leave()
		return tartree.Report{}, err
	}
	root, who, err := s.files.Files(ctx, engine.ContainerID(id.Sandbox(uid), name, state.GetStatus().GetAttempt()))
	if err != nil {
		leave()
		return tartree.Report{}, err
	}
	type result struct {
		report tartree.Report
		err    error
	}
	done := make(chan result, 1)
	s.work.Go(func() { // ends with the work, or with the stream; Run waits for it
		report, err := work(ctx, root, who)
		done <- result{report, errors.Join(err, root.Close())}
	})
	defer leave()
	select {
	case r := <-done:
		if r.err != nil && ctx.Err() != nil {
			r.err = context.Cause(ctx)
		}
		return r.report, r.err
	case <-ctx.Done():
		return tartree.Report{}, context.Cause(ctx)
	}
}

// CopyOut sends what is at a path.
func (s *Server) CopyOut(req *sandboxhostv1.CopyOutRequest, st grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]) error {
	report, err := s.do(st.Context(), req.GetUid(), req.GetContainer(), func(ctx context.Context, root *inroot.Root, who inroot.Identity) (tartree.Report, error) {
		return packed(ctx, root, who, req.GetPath(), &sender{ctx, st})
	})
	if err != nil {
		return err
	}
	return st.Send(&sandboxhostv1.CopyOutResponse{Frame: &sandboxhostv1.CopyOutResponse_Done{Done: reportOf(report)}})
}

// packed sends what is at a path as a tar stream.
func packed(ctx context.Context, root *inroot.Root, who inroot.Identity, at string, to io.Writer) (report tartree.Report, err error) {
	place, err := find(root, at)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	out := bufio.NewWriterSize(to, chunk)
	report, err = tartree.Pack(ctx, out, tartree.TopOf(at), place, tartree.PackOptions{Owner: who.Inside})
	if err == nil {
		err = out.Flush()
	}
	return report, err
}

// find finds what is at a path of the container.
func find(root *inroot.Root, at string) (*os.File, error) {
	place, err := root.Find(at)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fault.New(fault.NotFound, "there is no %s in the container", at)
	case err != nil:
		return nil, fault.New(fault.Invalid, "find it in the container: %w", err)
	}
	return place, nil
}

func reportOf(r tartree.Report) *sandboxhostv1.CopyReport {
	return &sandboxhostv1.CopyReport{Entries: r.Entries, ContentBytes: r.Bytes, Skipped: r.Skipped}
}

// sender writes into a stream.
type sender struct {
	ctx context.Context //nolint:containedctx // it lives as long as the call
	st  grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]
}

// Write sends bytes, in messages of the size that the contract grants.
func (s *sender) Write(b []byte) (int, error) {
	for n := 0; n < len(b); n += chunk {
		if s.ctx.Err() != nil {
			return n, context.Cause(s.ctx)
		}
		part := b[n:min(n+chunk, len(b))]
		if err := s.st.Send(&sandboxhostv1.CopyOutResponse{Frame: &sandboxhostv1.CopyOutResponse_Data{Data: part}}); err != nil {
			return n, fmt.Errorf("send: %w", err)
		}
	}
	return len(b), nil
}
