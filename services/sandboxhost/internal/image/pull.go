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
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// progressEvery is how often those who wait for a pull are told.
const progressEvery = 250 * time.Millisecond

// abortLimit bounds how long it takes to throw away what a failed pull left.
const abortLimit = 10 * time.Second

// Progress is told how far a pull is, every now and then.
type Progress func(State)

// State is how far a pull is.
type State struct {
	// Done and Total are bytes of the image's parts: present, and all, so far as is known.
	Done, Total int64
	// Turn is 1 for the pull that begins next, and 0 for one that goes on: the node does
	// AtOnce pulls at once.
	Turn, AtOnce int
}

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
				progress(s.state(ctx, c.ContentStore(), f))
			}
		}
	}
}

// flight is one pull with all who wait for it.
type flight struct {
	cancel  context.CancelFunc
	waiting int // guarded by the store

	turn  chan struct{} // in the queue
	done  chan struct{}
	image Image // valid once done
	err   error

	mu    sync.Mutex
	parts map[digest.Digest]ocispec.Descriptor
	cause error // why the first part failed that did
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
	f := &flight{cancel: cancel, waiting: 1, turn: make(chan struct{}), done: make(chan struct{}), parts: map[digest.Digest]ocispec.Descriptor{}}
	s.flights[name] = f
	go func() { // owned by the flight; ends when the pull does, and all who wait see it
		done := sync.OnceFunc(func() { close(f.done) })
		defer done()
		f.image, f.err = s.inTurn(own, c, name, f)
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

// inTurn pulls when it is this pull's turn.
func (s *Store) inTurn(ctx context.Context, c *containerd.Client, name string, f *flight) (Image, error) {
	if err := s.queue.enter(ctx, f.turn); err != nil {
		return Image{}, classify("pull image "+name+": it waited for its turn", err)
	}
	defer s.queue.leave()
	lease, err := s.hold(ctx, c, name)
	if err != nil {
		s.letGo(ctx, c, lease, false)
		return Image{}, fmt.Errorf("pull image %s: %w", name, err)
	}
	img, err := s.replace(leases.WithLease(ctx, lease.ID), c, lease, name, f)
	if worthKeeping(err) {
		s.leftParts()
		return Image{}, err
	}
	s.letGo(ctx, c, lease, err != nil)
	return img, err
}

// replace fetches an image, and keeps what its name meant before. The name means the
// new one only once that is known to be whole and for this platform: a pull that fails
// leaves the name as it was.
func (s *Store) replace(ctx context.Context, c *containerd.Client, lease leases.Lease, name string, f *flight) (Image, error) {
	record, err := s.fetch(ctx, c, name, f)
	if err != nil {
		return Image{}, err
	}
	img, err := s.ready(ctx, c, record)
	if err != nil {
		return Image{}, err
	}
	entered, err := s.move(ctx, c, lease, record)
	if err != nil {
		return Image{}, fmt.Errorf("pull image %s: %w", name, err)
	}
	return s.described(img, entered), nil
}

// worthKeeping says whether the next pull may go on with what one that failed has left.
// What is left by one that cannot succeed, or that has filled the disk, goes at once.
func worthKeeping(err error) bool { return errors.Is(err, fault.Unavailable) }

// fetch makes the parts of an image present and unpacked, and returns the record that it
// is to have.
func (s *Store) fetch(ctx context.Context, c *containerd.Client, name string, f *flight) (images.Image, error) {
	origins, creds, err := s.origins(ctx, name)
	if err != nil {
		return images.Image{}, fmt.Errorf("pull image %s: %w", name, err)
	}
	defer closeIdle(origins)
	src := &source{origins: origins, creds: creds}
	img, err := c.Pull(holdBack(ctx), name,
		containerd.WithResolver(src),
		containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(s.cfg.Snapshotter),
		containerd.WithUnpackOpts(s.unpacking()),
		containerd.WithImageHandler(images.HandlerFunc(f.see)),
		containerd.WithImageHandlerWrapper(s.transferOf(src, c.ContentStore(), name, f).wrap),
	)
	if err != nil {
		return images.Image{}, s.withFigures(ctx, classify("pull image "+name, f.why(err)), f.size())
	}
	return img.Metadata(), nil
}

// failed notes why a part could not be had. The first tells why; those after it may
// only have been called off.
func (f *flight) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause == nil {
		f.cause = err
	}
}

func (f *flight) why(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause != nil {
		return f.cause
	}
	return err
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

// state is how far a pull is.
func (s *Store) state(ctx context.Context, store content.Store, f *flight) State {
	if turn := s.queue.position(f.turn); turn > 0 {
		return State{Turn: turn, AtOnce: s.queue.size}
	}
	done, total := f.progress(ctx, store)
	return State{Done: done, Total: total, AtOnce: s.queue.size}
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

// Sentence says how far a pull is, for people.
func Sentence(ref string, at State) string {
	const mib = 1 << 20
	switch {
	case at.Turn > 0:
		return fmt.Sprintf("waiting to begin pulling %s: number %d in the queue, this node pulls %d images at once (images.max_pulls)", ref, at.Turn, at.AtOnce)
	case at.Total == 0:
		return fmt.Sprintf("pulling %s", ref)
	}
	return fmt.Sprintf("pulling %s: %d of %d MiB", ref, at.Done/mib, (at.Total+mib-1)/mib)
}
