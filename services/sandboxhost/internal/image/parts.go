package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// maxShownPlatforms bounds how many platforms an error lists.
const maxShownPlatforms = 16

// errPlatform marks that an image is not made for this node.
var errPlatform = errors.New("the image is not made for this node")

// transfer is how one pull fetches the parts of its image: a few at once, from one host
// after the other, each going on where the one before was cut, until it is what its
// digest says.
type transfer struct {
	source *source
	store  content.Store
	layers *semaphore.Weighted
	flight *flight
	name   string
	log    *slog.Logger
}

func (s *Store) transferOf(src *source, store content.Store, name string, f *flight) *transfer {
	return &transfer{
		source: src, store: store, layers: semaphore.NewWeighted(int64(s.cfg.layers())), flight: f, name: name, log: s.deps.Log,
	}
}

// wrap is for containerd.WithImageHandlerWrapper.
func (p *transfer) wrap(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			if err := p.layers.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			defer p.layers.Release(1)
		}
		children, err := p.fetch(ctx, h, desc)
		if err != nil {
			p.flight.failed(err)
		}
		return children, err
	})
}

// fetch fetches one part and returns what it names.
func (p *transfer) fetch(ctx context.Context, h images.Handler, desc ocispec.Descriptor) (children []ocispec.Descriptor, err error) {
	err = p.source.over(ctx, docker.HostCapabilityPull, func() int64 { return p.offset(ctx, desc) }, func(ctx context.Context, o int) error {
		children, err = h.Handle(context.WithValue(ctx, originKey{}, o), desc)
		if err == nil || ours(err) {
			return err
		}
		if images.IsIndexType(desc.MediaType) && errdefs.IsNotFound(err) {
			if made := p.platformsOf(ctx, desc); len(made) > 0 {
				return fault.WithReason(fault.New(fault.NotFound, "%w: it is made for %s, this node runs %s",
					errPlatform, strings.Join(made, ", "), platforms.DefaultString()), "IMAGE_OTHER_PLATFORM")
			}
		}
		return p.verified(ctx, desc, err)
	})
	if failed, ok := errors.AsType[refusals](err); ok {
		return nil, partError{desc, failed}
	}
	return children, err
}

// offset is how many bytes of a part there are.
func (p *transfer) offset(ctx context.Context, desc ocispec.Descriptor) int64 {
	status, err := p.store.Status(ctx, remotes.MakeRefKey(ctx, desc))
	if err != nil {
		return 0 // none yet, or whole
	}
	return status.Offset
}

// verified throws away a part that is not what its digest says: the next try would
// else go on with it for ever.
func (p *transfer) verified(ctx context.Context, desc ocispec.Descriptor, err error) error {
	switch status, _ := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); {
	case errdefs.IsFailedPrecondition(err):
	case status.StatusCode == http.StatusRequestedRangeNotSatisfiable: // there are more bytes than it has
	default:
		return err
	}
	err = fault.WithReason(fault.New(fault.Unavailable, "what it gave is not what the digest says: %s", err), "IMAGE_PART_BROKEN")
	p.log.Warn("part of image thrown away", logging.Component(p.name), logging.Err(err))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortLimit)
	defer cancel()
	if abort := p.store.Abort(ctx, remotes.MakeRefKey(ctx, desc)); abort != nil && !errdefs.IsNotFound(abort) {
		return errors.Join(err, abort)
	}
	return err
}

// platformsOf lists for which platforms an index that was fetched has images, without
// what only describes them. None means that it cannot be read.
func (p *transfer) platformsOf(ctx context.Context, desc ocispec.Descriptor) []string {
	var index ocispec.Index
	if raw, err := content.ReadBlob(ctx, p.store, desc); err == nil {
		_ = json.Unmarshal(raw, &index) // what cannot be read lists none
	}
	var made []string
	for _, m := range index.Manifests {
		if m.Platform != nil && m.Platform.OS != "unknown" && m.Platform.OS != "" {
			made = append(made, platforms.Format(platforms.Normalize(*m.Platform)))
		}
	}
	slices.Sort(made)
	made = slices.Compact(made)
	if more := len(made) - maxShownPlatforms; more > 0 {
		made = append(made[:maxShownPlatforms], fmt.Sprintf("%d more", more))
	}
	return made
}

// partError is why one part of an image could not be had.
type partError struct {
	desc ocispec.Descriptor
	refusals
}

// Error names the part and each host.
func (e partError) Error() string { return e.what() + ": " + e.refusals.Error() }

func (e partError) what() string { return kindOfPart(e.desc) + " " + e.desc.Digest.String() }

func kindOfPart(desc ocispec.Descriptor) string {
	switch {
	case images.IsIndexType(desc.MediaType):
		return "index"
	case images.IsManifestType(desc.MediaType):
		return "manifest"
	case images.IsConfigType(desc.MediaType):
		return "configuration"
	case images.IsLayerType(desc.MediaType):
		return "layer"
	}
	return "part"
}

// byDigest says that a reference says by itself which content it means.
func byDigest(ref string) bool {
	_, after, ok := strings.Cut(ref, "@")
	return ok && digest.Digest(after).Validate() == nil
}
