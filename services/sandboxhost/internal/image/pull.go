package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
)

// progressEvery is how often those who wait for a pull are told.
const progressEvery = 250 * time.Millisecond

// abortLimit bounds how long it takes to throw away what a failed pull left.
const abortLimit = 10 * time.Second

// Progress is told how many bytes of an image are present, so far as is known.
type Progress func(done, total int64)

// Policy says when a registry is asked for an image.
type Policy int

// Policies.
const (
	IfNotPresent Policy = iota
	Always
	Never
)

// Prepare makes an image present as the policy says. Never returns
// fault.NotFound for one that is not.
func (s *Store) Prepare(ctx context.Context, ref string, policy Policy, progress Progress) (Image, error) {
	switch policy {
	case Always:
		return s.Pull(ctx, ref, progress)
	case Never:
		found, err := s.Find(ctx, ref)
		if errors.Is(err, fault.NotFound) {
			return Image{}, fault.WithReason(fault.New(fault.NotFound,
				"%w, and its pull policy is never: bring it with staddle image pull or staddle image import", err), "IMAGE_NOT_PRESENT")
		}
		return found, err
	}
	return s.Ensure(ctx, ref, progress)
}

// Ensure makes an image present and unpacked. A present one costs no network
// contact. Kinds of errors: Invalid for a bad reference; NotFound if the registry
// has no such image, or none for this platform; Denied if it refuses; Exhausted
// if the disk is full; Unavailable if it cannot be reached.
func (s *Store) Ensure(ctx context.Context, ref string, progress Progress) (Image, error) {
	found, err := s.Find(ctx, ref)
	if !errors.Is(err, fault.NotFound) {
		return found, err
	}
	return s.Pull(ctx, ref, progress)
}

// Pull fetches an image, also if it is present. Errors are those of Ensure. Pulls
// of the same image are done once; the pull ends early only when all who wait for
// it have left.
func (s *Store) Pull(ctx context.Context, ref string, progress Progress) (Image, error) {
	name, err := Normalize(ref)
	if err != nil {
		return Image{}, err
	}
	c, err := s.deps.Client()
	if err != nil {
		return Image{}, err
	}
	if err := s.makeRoom(ctx, "pull image "+name); err != nil {
		return Image{}, err
	}
	f := s.join(ctx, c, name)
	defer s.leave(name, f)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-f.done:
			return f.image, f.err
		case <-ctx.Done():
			return Image{}, context.Cause(ctx)
		case <-ticker.C:
			if progress != nil {
				progress(f.progress(ctx, c.ContentStore()))
			}
		}
	}
}

// flight is one pull with all who wait for it.
type flight struct {
	cancel  context.CancelFunc
	waiting int // guarded by the store

	done  chan struct{}
	image Image // valid once done
	err   error

	mu    sync.Mutex
	parts map[digest.Digest]ocispec.Descriptor
}

// join begins a pull, or joins the one that goes on. The pull has an end of its
// own: when the last who waits leaves.
func (s *Store) join(ctx context.Context, c *containerd.Client, name string) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[name]; ok {
		f.waiting++
		return f
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, waiting: 1, done: make(chan struct{}), parts: map[digest.Digest]ocispec.Descriptor{}}
	s.flights[name] = f
	go func() { // owned by the flight; ends when the pull does, and all who wait see it
		done := sync.OnceFunc(func() { close(f.done) })
		defer done()
		f.image, f.err = s.fetch(own, c, name, f)
		if f.err != nil {
			s.throwAway(own, c, name, f)
		}
		s.land(name, f)
		done() // nobody waits for the memory
		giveBack()
	}()
	return f
}

func (s *Store) leave(name string, f *flight) {
	s.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last && s.flights[name] == f {
		delete(s.flights, name) // the next who asks begins anew
	}
	s.mu.Unlock()
	if last {
		f.cancel()
	}
}

func (s *Store) land(name string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[name] == f {
		delete(s.flights, name)
	}
}

func (s *Store) fetch(ctx context.Context, c *containerd.Client, name string, f *flight) (Image, error) {
	img, err := c.Pull(ctx, name,
		containerd.WithResolver(s.resolver()),
		containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(s.cfg.Snapshotter),
		containerd.WithUnpackOpts(s.unpacking()),
		containerd.WithImageHandler(images.HandlerFunc(f.see)),
	)
	if err != nil {
		return Image{}, s.withFigures(ctx, classify("pull image "+name, err), f.size())
	}
	return s.ready(ctx, c, img.Metadata())
}

// see notes a part of the image for the progress, and refuses it before it is
// fetched if it must not be read.
func (f *flight) see(_ context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if err := describable(desc); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts[desc.Digest] = desc
	return nil, nil
}

// size is how many bytes the parts have that are known.
func (f *flight) size() (sum int64) {
	for _, desc := range f.seen() {
		sum += desc.Size
	}
	return sum
}

func (f *flight) seen() []ocispec.Descriptor {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := make([]ocispec.Descriptor, 0, len(f.parts))
	for _, desc := range f.parts {
		parts = append(parts, desc)
	}
	return parts
}

// progress counts the bytes that are present. What cannot be asked now counts as
// nothing: the figure is for people.
func (f *flight) progress(ctx context.Context, store content.Store) (done, total int64) {
	active := map[string]int64{}
	if statuses, err := store.ListStatuses(ctx); err == nil {
		for _, st := range statuses {
			active[st.Ref] = st.Offset
		}
	}
	for _, desc := range f.seen() {
		total += desc.Size
		if offset, ok := active[remotes.MakeRefKey(ctx, desc)]; ok {
			done += offset
		} else if _, err := store.Info(ctx, desc.Digest); err == nil {
			done += desc.Size
		}
	}
	return done, total
}

// throwAway removes what a failed pull has written in part, so that it takes no
// room and no later pull builds on it. Parts that another pull is writing stay.
func (s *Store) throwAway(ctx context.Context, c *containerd.Client, name string, f *flight) {
	s.mu.Lock()
	alone := len(s.flights) == 0 || len(s.flights) == 1 && s.flights[name] == f
	s.mu.Unlock()
	if !alone {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortLimit)
	defer cancel()
	for _, desc := range f.seen() {
		err := c.ContentStore().Abort(ctx, remotes.MakeRefKey(ctx, desc))
		if err != nil && !errdefs.IsNotFound(err) {
			s.deps.Log.Warn("part of image not removed", logging.Component(name), logging.Err(err))
			return
		}
	}
}

// Sentence says how far a pull is, for people.
func Sentence(ref string, done, total int64) string {
	const mib = 1 << 20
	if total == 0 {
		return fmt.Sprintf("pulling %s", ref)
	}
	return fmt.Sprintf("pulling %s: %d of %d MiB", ref, done/mib, (total+mib-1)/mib)
}
