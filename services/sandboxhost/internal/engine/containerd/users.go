package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/image"
)

// maxAccounts bounds how much of a file of accounts is read.
const maxAccounts = 1 << 20

// maxKnown bounds of how many images the accounts are remembered, and maxRemembered
// how long they may be for that: what an image says fills no memory.
const (
	maxKnown      = 256
	maxRemembered = 64 << 10
)

// viewPrefix begins the names of views. Each look has one of its own: two at a time
// never remove each other's, and one that a death left half made is in nobody's way.
const viewPrefix = "staddle-look-"

// viewLife is how long containerd keeps the view of an image should we die
// while we look into it.
const viewLife = 10 * time.Minute

// accounts are the files of users and groups of one image.
type accounts struct{ passwd, group []byte }

// users finds users in images, and remembers what it found there.
type users struct {
	e *Engine

	mu    sync.Mutex
	known map[string]accounts // by the image's chain
}

func newUsers(e *Engine) *users { return &users{e: e, known: map[string]accounts{}} }

// userOf is the user that a container runs as, the image's unless the spec names
// one, with all groups.
func (e *Engine) userOf(ctx context.Context, spec *resourcev1.ContainerSpec, img image.Image) (specs.User, error) {
	name := spec.GetUser()
	if name == "" {
		name = img.Config.User
	}
	a, err := e.users.accounts(ctx, img)
	if err != nil {
		return specs.User{}, err
	}
	found, err := resolve(a, name, img.Name)
	if err != nil {
		return specs.User{}, err
	}
	more, err := user.GetAdditionalGroups(spec.GetGroups(), bytes.NewReader(a.group))
	if err != nil {
		return specs.User{}, fault.WithReason(fault.New(fault.Invalid, "find groups %v in image %s: %w", spec.GetGroups(), img.Name, err), "NO_SUCH_GROUP")
	}
	for _, gid := range more {
		if !slices.Contains(found.AdditionalGids, uint32(gid)) {
			found.AdditionalGids = append(found.AdditionalGids, uint32(gid))
		}
	}
	slices.Sort(found.AdditionalGids)
	return found, nil
}

// resolve turns "uid", "uid:gid", "name" or "name:group" into numbers, with the
// further groups of the user. Empty is the superuser. It returns fault.Invalid if
// the image has no such user.
func resolve(a accounts, name, imageName string) (specs.User, error) {
	found, err := user.GetExecUser(name, &user.ExecUser{Home: "/"}, bytes.NewReader(a.passwd), bytes.NewReader(a.group))
	if err != nil {
		return specs.User{}, fault.WithReason(fault.New(fault.Invalid, "find user %q in image %s: %w", name, imageName, err), "NO_SUCH_USER")
	}
	result := specs.User{UID: uint32(found.Uid), GID: uint32(found.Gid)}
	for _, gid := range found.Sgids {
		result.AdditionalGids = append(result.AdditionalGids, uint32(gid))
	}
	return result, nil
}

func (u *users) accounts(ctx context.Context, img image.Image) (accounts, error) {
	u.mu.Lock()
	a, ok := u.known[img.ChainID]
	u.mu.Unlock()
	if ok {
		return a, nil
	}
	a, err := u.read(ctx, img)
	if err != nil {
		return accounts{}, fmt.Errorf("read accounts of image %s: %w", img.Name, err)
	}
	u.remember(img.ChainID, a)
	return a, nil
}

// remember spares the next look into an image; in place of any other if there are
// too many.
func (u *users) remember(chainID string, a accounts) {
	if len(a.passwd)+len(a.group) > maxRemembered {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for other := range u.known {
		if len(u.known) < maxKnown {
			break
		}
		delete(u.known, other)
	}
	u.known[chainID] = a
}

// read mounts the root filesystem of an image for a moment.
func (u *users) read(ctx context.Context, img image.Image) (a accounts, err error) {
	service := u.e.client.SnapshotService(snapshotter)
	key := viewPrefix + id.New()
	mounts, err := service.View(ctx, key, img.ChainID, snapshots.WithLabels(map[string]string{
		"containerd.io/gc.expire": now().Add(viewLife).Format(time.RFC3339),
	}))
	if errdefs.IsNotFound(err) {
		u.e.images.Forget(img.Digest)
	}
	if err != nil {
		return a, unavailable("view it", err)
	}
	err = mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
		if a.passwd, err = readWithin(root, "/etc/passwd"); err != nil {
			return err
		}
		a.group, err = readWithin(root, "/etc/group")
		return err
	})
	if removeErr := service.Remove(ctx, key); removeErr != nil && !errdefs.IsNotFound(removeErr) {
		u.e.log.Warn("view of image not removed", logging.Component(img.Name), logging.Err(removeErr))
	}
	return a, err
}

// clean removes what the process before us was looking into when it died. It must
// come before the first look.
func (u *users) clean(ctx context.Context) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(u.e.temp()))
	if err != nil {
		return fmt.Errorf("clean views of images: %w", err)
	}
	for _, m := range mounts {
		if err := errors.Join(unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH), os.Remove(m.Mountpoint)); err != nil {
			return fmt.Errorf("clean views of images: %w", err)
		}
	}
	service := u.e.client.SnapshotService(snapshotter)
	var left []string
	err = service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if strings.HasPrefix(info.Name, viewPrefix) {
			left = append(left, info.Name)
		}
		return nil
	})
	if err != nil {
		return unavailable("clean views of images", err)
	}
	for _, key := range left {
		if err := service.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			return unavailable("clean views of images", err)
		}
	}
	return nil
}

// readWithin reads a regular file of an image, following links within the image
// only. A missing file is empty.
func readWithin(root, path string) ([]byte, error) {
	real, err := fs.RootPath(root, path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "find %s: %w", path, err)
	}
	info, err := os.Lstat(real)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "%s is no regular file", path)
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	return raw, errors.Join(err, f.Close())
}
