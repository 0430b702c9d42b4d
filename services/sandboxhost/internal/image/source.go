package image

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// Trying again within one pull: what a host cannot give now is asked for so many
// times in all without a byte of progress, each time after twice the wait.
const (
	rounds    = 3
	firstWait = 500 * time.Millisecond
)

// source is where one pull gets its image: the hosts of its registry, in their order.
type source struct {
	origins []origin
	creds   *credentials
}

var _ remotes.Resolver = (*source)(nil)

// over asks the hosts that can do something in their order until one does it, and
// all of them again after a while if the last of them may do it later. moved tells
// how far a thing has come, which makes new tries worth while.
func (s *source) over(ctx context.Context, can docker.HostCapabilities, moved func() int64, do func(ctx context.Context, o int) error) error {
	at := moved()
	for round := 1; ; round++ {
		failed := s.once(ctx, can, do)
		if failed == nil {
			return nil
		}
		if now := moved(); now > at {
			at, round = now, 1
		}
		last := failed.last().err
		if ctx.Err() != nil || round >= rounds || fault.KindOf(classify("", last)) != fault.Unavailable || fault.Reason(last) == "REGISTRY_CONFIG_INVALID" {
			return failed
		}
		select {
		case <-time.After(firstWait << (round - 1)):
		case <-ctx.Done():
			return failed
		}
	}
}

// once asks each host once.
func (s *source) once(ctx context.Context, can docker.HostCapabilities, do func(ctx context.Context, o int) error) refusals {
	var failed refusals
	for i, o := range s.origins {
		if !o.can.Has(can) {
			continue
		}
		err := do(ctx, i)
		if err == nil {
			return nil
		}
		failed = append(failed, refusal{host: o.name, said: s.creds.said(o.name), err: err})
		if ctx.Err() != nil || ours(err) {
			break
		}
	}
	if failed == nil {
		failed = refusals{{host: "none", err: errNoHost(s.creds.repository)}}
	}
	return failed
}

// ours says that it is not for want of a host that something failed: another would
// not help.
func ours(err error) bool {
	return errors.Is(err, fault.Invalid) || errors.Is(err, errPlatform) || diskFull(err)
}

// Resolve asks for the digest of a reference. Each host gets its share of the time. One
// that answers with something else, such as a page to log in at, does not have the image.
func (s *source) Resolve(ctx context.Context, ref string) (name string, desc ocispec.Descriptor, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	end, _ := ctx.Deadline()
	can := docker.HostCapabilityPull
	if !byDigest(ref) {
		can |= docker.HostCapabilityResolve
	}
	err = s.over(ctx, can, func() int64 { return 0 }, func(ctx context.Context, o int) error {
		ctx, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(s.origins)-o))
		defer cancel()
		name, desc, err = s.origins[o].resolver.Resolve(ctx, ref)
		if err == nil && !images.IsIndexType(desc.MediaType) && !images.IsManifestType(desc.MediaType) {
			return fault.New(fault.NotFound, "it answered with %.80q, which is no image", desc.MediaType)
		}
		return err
	})
	return name, desc, err
}

// originKey is under which a context says which host is asked.
type originKey struct{}

// Fetcher returns what fetches parts from the host that the context of a fetch says.
func (s *source) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	all := make([]remotes.Fetcher, len(s.origins))
	for i, o := range s.origins {
		f, err := o.resolver.Fetcher(ctx, ref)
		if err != nil {
			return nil, err
		}
		all[i] = f
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		o, _ := ctx.Value(originKey{}).(int)
		desc.URLs = nil // whoever made the image does not choose whom this node asks
		return all[o].Fetch(ctx, desc)
	}), nil
}

// Pusher is there for the interface; nothing is ever pushed.
func (s *source) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errdefs.ErrNotImplemented
}
