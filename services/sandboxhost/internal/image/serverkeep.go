package image

import (
	"bufio"
	"context"
	"fmt"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// maxChunk is the contract's bound of a part of an archive.
const maxChunk = 64 << 10

// PinImage keeps an image.
func (s *Server) PinImage(ctx context.Context, req *sandboxhostv1.PinImageRequest) (*sandboxhostv1.PinImageResponse, error) {
	name, err := s.store.Pin(ctx, req.GetImage())
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.PinImageResponse{Name: name}, nil
}

// UnpinImage keeps it no more.
func (s *Server) UnpinImage(ctx context.Context, req *sandboxhostv1.UnpinImageRequest) (*sandboxhostv1.UnpinImageResponse, error) {
	name, err := s.store.Unpin(ctx, req.GetImage())
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.UnpinImageResponse{Name: name}, nil
}

// ExportImage sends the size, and then the archive.
func (s *Server) ExportImage(req *sandboxhostv1.ExportImageRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ExportImageResponse]) error {
	e, err := s.store.Export(stream.Context(), req.GetImage(), req.GetAllPlatforms())
	if err != nil {
		return err
	}
	defer giveBack()
	defer e.Close()
	if err := stream.Send(&sandboxhostv1.ExportImageResponse{TotalBytes: e.Size}); err != nil {
		return err
	}
	w := bufio.NewWriterSize(sender{stream}, maxChunk)
	if err := e.Write(stream.Context(), w); err != nil {
		return err
	}
	return w.Flush()
}

// sender sends what is written, in parts that the contract takes.
type sender struct {
	stream grpc.ServerStreamingServer[sandboxhostv1.ExportImageResponse]
}

// Write sends p.
func (s sender) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		part := p[sent:min(len(p), sent+maxChunk)]
		if err := s.stream.Send(&sandboxhostv1.ExportImageResponse{Chunk: part}); err != nil {
			return sent, err
		}
		sent += len(part)
	}
	return len(p), nil
}

// PruneImages removes what nothing needs.
func (s *Server) PruneImages(ctx context.Context, req *sandboxhostv1.PruneImagesRequest) (*sandboxhostv1.PruneImagesResponse, error) {
	users := func() ([]User, error) {
		users, err := s.deps.Users()
		if err != nil {
			return nil, fmt.Errorf("prune images: %w", err)
		}
		return users, nil
	}
	removed, freed, err := s.store.Prune(ctx, users, Prune{MinAge: s.deps.MinAge, All: req.GetAll(), DryRun: req.GetDryRun()})
	if err != nil {
		return nil, err
	}
	res := &sandboxhostv1.PruneImagesResponse{FreedBytes: freed}
	for _, image := range removed {
		res.Images = append(res.Images, wire(image))
	}
	return res, nil
}
