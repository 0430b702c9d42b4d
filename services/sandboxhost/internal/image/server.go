package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Pages of ListImages.
const (
	defaultPage = 100
	maxPage     = 1000
)

// Server serves ImageService from a Store.
type Server struct {
	sandboxhostv1.UnimplementedImageServiceServer

	store *Store
	deps  ServerDeps
}

// ServerDeps are what a Server works with.
type ServerDeps struct {
	// Users returns what needs images, or fault.Unavailable while that is not known.
	Users func() ([]User, error)
	// MinAge protects an image from being pruned for so long after its last use.
	MinAge time.Duration
}

// NewServer returns the server of a store.
func NewServer(s *Store, deps ServerDeps) *Server { return &Server{store: s, deps: deps} }

// PullImage makes an image present and sends its progress.
func (s *Server) PullImage(req *sandboxhostv1.PullImageRequest, stream grpc.ServerStreamingServer[sandboxhostv1.PullImageResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	progress := func(at State) {
		if err := stream.Send(&sandboxhostv1.PullImageResponse{DoneBytes: at.Done, TotalBytes: at.Total, QueuePosition: int32(at.Turn)}); err != nil {
			cancel(err)
		}
	}
	pull := s.store.Ensure
	if req.GetRefresh() {
		pull = s.store.Pull
	}
	image, err := pull(ctx, req.GetImage(), progress)
	if err != nil {
		return err
	}
	return stream.Send(&sandboxhostv1.PullImageResponse{DoneBytes: image.Size, TotalBytes: image.Size, Image: wire(image)})
}

// ImportImage reads an archive from the stream.
func (s *Server) ImportImage(stream grpc.ClientStreamingServer[sandboxhostv1.ImportImageRequest, sandboxhostv1.ImportImageResponse]) error {
	r := &chunks{stream: stream}
	done, err := s.store.Import(stream.Context(), r)
	if r.err != nil {
		return r.err // the caller's connection broke, which is not the archive's fault
	}
	if err != nil {
		return err
	}
	res := &sandboxhostv1.ImportImageResponse{}
	for _, image := range done {
		res.Images = append(res.Images, wire(image))
	}
	return stream.SendAndClose(res)
}

// ListImages returns one page, ordered by name; the token is the last name of
// the page before.
func (s *Server) ListImages(ctx context.Context, req *sandboxhostv1.ListImagesRequest) (*sandboxhostv1.ListImagesResponse, error) {
	if req.GetPageSize() < 0 {
		return nil, fault.New(fault.Invalid, "list images: page_size is %d, write 0 to %d", req.GetPageSize(), maxPage)
	}
	all, err := s.store.List(ctx)
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	page, next := pageOf(all, req.GetPageToken(), min(size, maxPage))
	users, err := s.deps.Users()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	needed := wantedBy(users)
	res := &sandboxhostv1.ListImagesResponse{NextPageToken: next}
	for _, image := range page {
		out := wire(image)
		out.InUse = len(needed.of(record(image))) > 0
		res.Images = append(res.Images, out)
	}
	return res, nil
}

// RemoveImage takes a name away that nothing needs.
func (s *Server) RemoveImage(ctx context.Context, req *sandboxhostv1.RemoveImageRequest) (*sandboxhostv1.RemoveImageResponse, error) {
	since := time.Now() // who comes from now on is not among the users
	users, err := s.deps.Users()
	if err != nil {
		return nil, fmt.Errorf("remove image %s: %w", req.GetImage(), err)
	}
	name, err := s.store.Remove(ctx, req.GetImage(), users, since)
	if err != nil {
		return nil, err
	}
	return &sandboxhostv1.RemoveImageResponse{Name: name}, nil
}

// pageOf cuts the page that follows the name after.
func pageOf(all []Image, after string, size int) (page []Image, next string) {
	from, found := slices.BinarySearchFunc(all, after, func(i Image, name string) int { return strings.Compare(i.Name, name) })
	if found && after != "" {
		from++
	}
	page = all[from:]
	if len(page) > size {
		page = page[:size]
		next = page[size-1].Name
	}
	return page, next
}

func wire(i Image) *sandboxhostv1.Image {
	return &sandboxhostv1.Image{
		Name: i.Name, Digest: i.Digest.String(), SizeBytes: i.Size, CreatedAt: timestamppb.New(i.CreatedAt),
		Pinned: i.Pinned, Imported: !i.Imported.IsZero(), LastUsedAt: timestamppb.New(i.LastUsed),
	}
}

// record is as much of an image's record as says who needs it.
func record(i Image) images.Image {
	return images.Image{Name: i.Name, Target: ocispec.Descriptor{Digest: i.Digest}}
}

// chunks reads the bytes of a stream of requests.
type chunks struct {
	stream grpc.ClientStreamingServer[sandboxhostv1.ImportImageRequest, sandboxhostv1.ImportImageResponse]
	rest   []byte
	err    error // of the connection
}

// Read returns the next bytes; io.EOF once the caller has sent all.
func (c *chunks) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		req, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			c.err = err
			return 0, err
		}
		c.rest = req.GetChunk()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
