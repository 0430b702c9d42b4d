package target

import (
	"context"
	"errors"
	"io"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

// chunkSize of an import is the contract's bound.
const chunkSize = 64 << 10

// Pull makes an image present and reports its progress: how many pulls go first, this
// one counted, or how many bytes there are.
func (n *Node) Pull(ctx context.Context, ref string, refresh bool, waits func(turn int), progress func(done, total int64)) (*sandboxhostv1.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.images.PullImage(ctx, &sandboxhostv1.PullImageRequest{Image: ref, Refresh: refresh})
	if err != nil {
		return nil, wrap(err, "pull image %s", ref)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return nil, explainPull(ref, ended("pull image "+ref, err))
		}
		if turn := msg.GetQueuePosition(); turn > 0 {
			waits(int(turn))
			continue
		}
		progress(msg.GetDoneBytes(), msg.GetTotalBytes())
		if msg.GetImage() != nil {
			return msg.GetImage(), nil
		}
	}
}

func explainPull(ref string, err error) error {
	if fault.KindOf(err) == fault.Unavailable {
		return exit.Try(err, "the same again when the registry answers, or bring an archive: staddle image import FILE")
	}
	if fault.KindOf(err) == fault.NotFound {
		return exit.Try(err, "check the name %s", ref)
	}
	return err
}

// Import sends an archive and returns its images. Progress counts bytes sent.
func (n *Node) Import(ctx context.Context, archive io.Reader, progress func(sent int64)) ([]*sandboxhostv1.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.images.ImportImage(ctx)
	if err != nil {
		return nil, wrap(err, "import image")
	}
	if err := send(archive, stream.Send, progress); err != nil {
		return nil, err
	}
	resp, err := stream.CloseAndRecv()
	if err != nil {
		return nil, wrap(err, "import image")
	}
	return resp.GetImages(), nil
}

// send moves the archive in chunks. The server's early end, seen as io.EOF by
// the sender, is no error here: its reason is the answer.
func send(archive io.Reader, push func(*sandboxhostv1.ImportImageRequest) error, progress func(int64)) error {
	buf := make([]byte, chunkSize)
	for sent := int64(0); ; {
		size, readErr := io.ReadFull(archive, buf)
		if size > 0 {
			err := push(&sandboxhostv1.ImportImageRequest{Chunk: buf[:size]})
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return wrap(err, "import image")
			}
			sent += int64(size)
			progress(sent)
		}
		switch {
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF):
			return nil
		case readErr != nil:
			return fault.New(fault.Invalid, "read archive: %w", readErr)
		}
	}
}

// RemoveImage takes an image's name away and returns that in full.
func (n *Node) RemoveImage(ctx context.Context, ref string) (string, error) {
	resp, err := n.images.RemoveImage(ctx, &sandboxhostv1.RemoveImageRequest{Image: ref})
	switch {
	case err == nil:
		return resp.GetName(), nil
	case fault.KindOf(err) == fault.NotFound:
		return "", exit.Try(wrap(err, "remove image %s", ref), "see what there is: staddle image ls")
	case fault.Reason(err) == "IMAGE_IN_USE":
		return "", exit.Try(wrap(err, "remove image %s", ref), "remove what uses it first: staddle rm NAME")
	}
	if fault.Reason(err) == "IMAGE_PINNED" {
		return "", exit.Try(wrap(err, "remove image %s", ref), "unpin it first: staddle image unpin %s", ref)
	}
	return "", wrap(err, "remove image %s", ref)
}

// Images returns all images of the node.
func (n *Node) Images(ctx context.Context) ([]*sandboxhostv1.Image, error) {
	var out []*sandboxhostv1.Image
	for token := ""; ; {
		page, err := n.images.ListImages(ctx, &sandboxhostv1.ListImagesRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, wrap(err, "list images")
		}
		out = append(out, page.GetImages()...)
		if token = page.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}
