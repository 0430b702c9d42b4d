// Package image owns the images of one node: what is present at the container
// runtime, how an image gets there from a registry or an archive, and what a
// container needs to know of it.
//
// An image that is present is used without any network contact, whether it is
// named by tag, by tag and digest, or by digest. Pulls of one image are done once
// for all who ask. Nothing is kept of an archive that is not whole.
//
// It must never speak to a registry without TLS unless it is on loopback or the
// configuration names it, and never remove an image that is in use, pinned, or imported
// a short while ago. Sweeper alone removes images by itself, as Rules say. In the trail
// it is the step prepare-images.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// Config says where images come from and go to.
type Config struct {
	// Snapshotter unpacks them.
	Snapshotter string
	// PlainHTTP lists registry hosts that may be spoken to without TLS.
	PlainHTTP []string
	// RegistryDir says how registries are reached, and AuthFile holds credentials for
	// them; see config.Images. Empty means none.
	RegistryDir, AuthFile string
	// MaxPulls and MaxLayers bound how many images, and how many layers of one, are
	// fetched at once. 0 means 3.
	MaxPulls, MaxLayers int
	// StallTimeout is after how long without a byte a transfer is given up. 0 means 30 s.
	StallTimeout time.Duration
}

// Deps are what the store works with.
type Deps struct {
	// Client returns the connection to the runtime, or fault.Unavailable.
	Client func() (*containerd.Client, error)
	// Log gets what went wrong beside the way.
	Log *slog.Logger
}

// Image is an image that is present and unpacked.
type Image struct {
	// Name under which the runtime has it.
	Name string
	// Digest of its manifest or index.
	Digest digest.Digest
	// ChainID names the snapshot of its root filesystem.
	ChainID string
	// Config is what it says about how it is to be run. It belongs to the caller.
	Config ocispec.ImageConfig
	// Size of its compressed parts for this platform, in bytes.
	Size int64
	// CreatedAt is when it was made present.
	CreatedAt time.Time
	// Pinned images stay until they are unpinned.
	Pinned bool
	// Imported is when it came from an archive; zero if a registry gave it.
	Imported time.Time
	// LastUsed is when it was asked for, needed, or made present last.
	LastUsed time.Time
}

// Store is the images of one node.
type Store struct {
	cfg    Config
	deps   Deps
	unpack *locks
	uses   *uses
	queue  *queue

	mu      sync.Mutex
	flights map[string]*flight
	known   map[digest.Digest]Image // by target; what never changes
	roots   []string                // folders of the runtime, once it was asked
	room    *Sweeper                // who makes room; nil where nobody does

	cut chan struct{} // a pull has left parts
}

// New returns the store. It opens nothing.
func New(cfg Config, deps Deps) *Store {
	deps.Client = keeping(deps.Client)
	return &Store{
		cfg: cfg, deps: deps, unpack: &locks{held: map[string]chan struct{}{}}, uses: newUses(), queue: &queue{size: cfg.pulls()},
		flights: map[string]*flight{}, known: map[digest.Digest]Image{}, cut: make(chan struct{}, 1),
	}
}

// Normalize gives a reference its full name: "web" becomes
// "docker.io/library/web:latest". Of tag and digest the digest decides. It
// returns fault.Invalid for what is no reference.
func Normalize(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fault.New(fault.Invalid, "image %.200q: %w; write host/repository:tag or host/repository@sha256:…", ref, err)
	}
	return named.String(), nil
}

// Find returns an image that is present, unpacked if need be, without any
// network contact. It returns fault.NotFound if it is not, or not for this
// platform.
func (s *Store) Find(ctx context.Context, ref string) (Image, error) {
	name, err := Normalize(ref)
	if err != nil {
		return Image{}, err
	}
	c, err := s.deps.Client()
	if err != nil {
		return Image{}, err
	}
	record, err := s.claim(ctx, c, name)
	if err != nil {
		return Image{}, err
	}
	return s.ready(ctx, c, record)
}

// claim finds the record of an image that is used now, and not being taken away.
func (s *Store) claim(ctx context.Context, c *containerd.Client, name string) (images.Image, error) {
	for {
		record, err := lookup(ctx, c, name)
		if err != nil {
			return images.Image{}, err
		}
		again, err := s.uses.claim(ctx, record.Name, time.Now())
		if err != nil || !again {
			return record, err
		}
	}
}

// lookup finds the record of an image by its name, or by its digest under
// whatever name it came.
func lookup(ctx context.Context, c *containerd.Client, name string) (images.Image, error) {
	record, err := c.ImageService().Get(ctx, name)
	if err == nil {
		return record, nil
	}
	if !errdefs.IsNotFound(err) {
		return images.Image{}, fault.New(fault.Unavailable, "look for image %s: %w", name, err)
	}
	_, wanted, byDigest := strings.Cut(name, "@")
	if !byDigest {
		return images.Image{}, fault.New(fault.NotFound, "image %s is not present on this node", name)
	}
	records, err := c.ImageService().List(ctx, "target.digest=="+wanted)
	if err != nil {
		return images.Image{}, fault.New(fault.Unavailable, "look for image %s: %w", name, err)
	}
	if len(records) == 0 {
		return images.Image{}, fault.New(fault.NotFound, "image %s is not present on this node", name)
	}
	return records[0], nil
}

// ready makes sure that a present image is unpacked, and reads what it says.
func (s *Store) ready(ctx context.Context, c *containerd.Client, record images.Image) (Image, error) {
	s.mu.Lock()
	known, ok := s.known[record.Target.Digest]
	s.mu.Unlock()
	if !ok {
		var err error
		if known, err = s.inspect(ctx, c, record); err != nil {
			return Image{}, err
		}
		if err := s.unpackImage(ctx, c, record, known.ChainID); err != nil {
			return Image{}, err
		}
		s.mu.Lock()
		s.known[record.Target.Digest] = known
		s.mu.Unlock()
	}
	known.Config = cloneConfig(known.Config)
	return s.described(known, record), nil
}

// described adds what the record of an image says beside its content.
func (s *Store) described(i Image, record images.Image) Image {
	l := labelsOf(record)
	i.Name, i.CreatedAt = record.Name, record.CreatedAt
	i.Pinned, i.Imported, i.LastUsed = l.pinned, l.imported, later(l.used, s.uses.last(record.Name))
	return i
}

// Forget drops what is known of an image, after the runtime denied it.
func (s *Store) Forget(d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, d)
}

// maxDescription bounds the parts that say what an image is, which are read into
// memory; whoever made the image chose them.
const maxDescription = 8 << 20

// describable refuses a description that is larger. Other parts may have any size.
func describable(desc ocispec.Descriptor) error {
	describes := images.IsIndexType(desc.MediaType) || images.IsManifestType(desc.MediaType) || images.IsConfigType(desc.MediaType)
	if !describes {
		return nil
	}
	return readable(desc)
}

func readable(desc ocispec.Descriptor) error {
	if desc.Size <= maxDescription {
		return nil
	}
	return fault.WithReason(fault.New(fault.Invalid, "part %s, which describes the image, has %d bytes of at most %d",
		desc.Digest, desc.Size, int64(maxDescription)), "IMAGE_TOO_LARGE")
}

// inspect reads manifest and configuration of a present image.
func (s *Store) inspect(ctx context.Context, c *containerd.Client, record images.Image) (Image, error) {
	if err := readable(record.Target); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", record.Name, err)
	}
	store := c.ContentStore()
	manifest, err := images.Manifest(ctx, store, record.Target, platforms.Default())
	if errdefs.IsNotFound(err) {
		return Image{}, fault.New(fault.NotFound, "image %s is present, but not whole for %s: %w", record.Name, platforms.DefaultString(), err)
	}
	if err != nil {
		return Image{}, fault.New(fault.Unavailable, "read manifest of image %s: %w", record.Name, err)
	}
	if err := readable(manifest.Config); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", record.Name, err)
	}
	raw, err := content.ReadBlob(ctx, store, manifest.Config)
	if errdefs.IsNotFound(err) {
		return Image{}, fault.New(fault.NotFound, "image %s is present without its configuration: %w", record.Name, err)
	}
	if err != nil {
		return Image{}, fault.New(fault.Unavailable, "read configuration of image %s: %w", record.Name, err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(raw, &config); err != nil {
		return Image{}, fault.New(fault.Invalid, "read configuration of image %s: %w", record.Name, err)
	}
	if err := runnable(config.Platform, platforms.Default()); err != nil {
		return Image{}, fault.New(fault.NotFound, "image %s: %w", record.Name, err)
	}
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return Image{
		Digest: record.Target.Digest, ChainID: identity.ChainID(config.RootFS.DiffIDs).String(),
		Config: config.Config, Size: size,
	}, nil
}

// runnable says whether an image that is made for one platform runs on this one.
// An index is searched for the right platform; a lone manifest is taken as it is,
// and only its configuration says what it is made for, if anything. Variants of
// amd64 are not told apart: nobody says which one this node has.
func runnable(made ocispec.Platform, here platforms.Matcher) error {
	made = platforms.Normalize(made)
	if made.Architecture == "amd64" {
		made.Variant = ""
	}
	if made.OS == "" || made.Architecture == "" || here.Match(made) {
		return nil
	}
	return fmt.Errorf("it is made for %s, this node runs %s", platforms.Format(made), platforms.DefaultString())
}

// unpacking is how layers are unpacked: once each, and written to the disk before
// the runtime notes that they are there. After a power cut a layer that it knows
// would else be one of empty files.
func (s *Store) unpacking() []containerd.UnpackOpt {
	return []containerd.UnpackOpt{
		containerd.WithUnpackDuplicationSuppressor(s.unpack),
		containerd.WithUnpackApplyOpts(diff.WithSyncFs(true)),
	}
}

// unpackImage unpacks an image unless it is.
func (s *Store) unpackImage(ctx context.Context, c *containerd.Client, record images.Image, chainID string) error {
	_, err := c.SnapshotService(s.cfg.Snapshotter).Stat(ctx, chainID)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return fault.New(fault.Unavailable, "look for root filesystem of image %s: %w", record.Name, err)
	}
	img := containerd.NewImageWithPlatform(c, record, platforms.Default())
	err = img.Unpack(ctx, s.cfg.Snapshotter, s.unpacking()...)
	if err != nil {
		return classify(fmt.Sprintf("unpack image %s", record.Name), err)
	}
	return nil
}

// List returns the images that are present, ordered by name. Those that this
// node cannot run are among them, without a size.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	c, err := s.deps.Client()
	if err != nil {
		return nil, err
	}
	records, err := c.ImageService().List(ctx)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "list images: %w", err)
	}
	all := make([]Image, 0, len(records))
	for _, record := range records {
		image, err := s.inspect(ctx, c, record)
		if errors.Is(err, fault.Unavailable) {
			return nil, err
		}
		if err != nil {
			image = Image{Digest: record.Target.Digest}
		}
		all = append(all, s.described(image, record))
	}
	slices.SortFunc(all, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// cloneConfig copies what a caller may change.
func cloneConfig(c ocispec.ImageConfig) ocispec.ImageConfig {
	c.Env, c.Entrypoint, c.Cmd = slices.Clone(c.Env), slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	return c
}
