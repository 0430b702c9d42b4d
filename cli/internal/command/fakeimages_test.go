package command_test

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
)

func (h *fakeHost) image(name string) (*sandboxhostv1.Image, error) {
	for _, i := range h.images {
		if i.GetName() == name {
			return i, nil
		}
	}
	return nil, fault.New(fault.NotFound, "image %s: it is not present on this node", name)
}

// ExportImage sends an archive in two parts; one of an image called cut ends in between.
func (h *fakeHost) ExportImage(r *sandboxhostv1.ExportImageRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ExportImageResponse]) error {
	h.mu.Lock()
	_, err := h.image(r.GetImage())
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := stream.Send(&sandboxhostv1.ExportImageResponse{TotalBytes: 8}); err != nil {
		return err
	}
	parts := []string{"first ", "second"}
	if r.GetAllPlatforms() {
		parts = append(parts, " all")
	}
	for i, part := range parts {
		if i > 0 && strings.Contains(r.GetImage(), "cut") {
			return fault.New(fault.Unavailable, "the runtime went away")
		}
		if err := stream.Send(&sandboxhostv1.ExportImageResponse{Chunk: []byte(part)}); err != nil {
			return err
		}
	}
	return nil
}

func (h *fakeHost) PinImage(_ context.Context, r *sandboxhostv1.PinImageRequest) (*sandboxhostv1.PinImageResponse, error) {
	return &sandboxhostv1.PinImageResponse{Name: r.GetImage()}, h.pin(r.GetImage(), true)
}

func (h *fakeHost) UnpinImage(_ context.Context, r *sandboxhostv1.UnpinImageRequest) (*sandboxhostv1.UnpinImageResponse, error) {
	return &sandboxhostv1.UnpinImageResponse{Name: r.GetImage()}, h.pin(r.GetImage(), false)
}

func (h *fakeHost) pin(name string, pinned bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, err := h.image(name)
	if err == nil {
		i.Pinned = pinned
	}
	return err
}

func (h *fakeHost) PruneImages(_ context.Context, r *sandboxhostv1.PruneImagesRequest) (*sandboxhostv1.PruneImagesResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	res, left := &sandboxhostv1.PruneImagesResponse{}, []*sandboxhostv1.Image(nil)
	for _, i := range h.images {
		if i.GetPinned() || i.GetImported() && !r.GetAll() {
			left = append(left, i)
			continue
		}
		res.Images, res.FreedBytes = append(res.Images, i), res.FreedBytes+i.GetSizeBytes()
	}
	if !r.GetDryRun() {
		h.images = left
	}
	return res, nil
}
