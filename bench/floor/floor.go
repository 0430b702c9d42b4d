// Package floor is what every figure is compared with: the containerd Go client
// doing the same work without us. One container with a network namespace, an
// interface on a bridge, an address and a route, a fresh snapshot, the default
// seccomp profile for the native architecture, and limits.
//
// It does nothing cleverly and nothing needlessly; a figure that beats it has
// found something, one that is far above it has lost something.
package floor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bridgeName is the bridge of the floor's containers.
const bridgeName = "floor0"

// cgroupName is the cgroup below which they run.
const cgroupName = "staddle-floor"

// Floor starts containers by the client alone.
type Floor struct {
	client *containerd.Client
	ctx    func(context.Context) context.Context
	image  containerd.Image
	dir    string
	host   *netlink.Handle
	hostNS netns.NsHandle
	bridge int
	count  atomic.Uint32
}

// Open connects to containerd at address, whose network is the namespace file
// hostNS, and keeps its namespaces below dir.
func Open(ctx context.Context, address, image, from, hostNS, dir string) (*Floor, error) {
	client, err := containerd.New(address)
	if err != nil {
		return nil, err
	}
	f := &Floor{client: client, dir: dir, ctx: func(ctx context.Context) context.Context {
		return namespaces.WithNamespace(ctx, "floor")
	}}
	if f.hostNS, err = netns.GetFromPath(hostNS); err != nil {
		return nil, err
	}
	if f.host, err = netlink.NewHandleAt(f.hostNS); err != nil {
		return nil, err
	}
	if err := f.addBridge(); err != nil {
		return nil, err
	}
	archive, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	ctx = f.ctx(ctx)
	if _, err := client.Import(ctx, archive); err != nil {
		return nil, err
	}
	if f.image, err = client.GetImage(ctx, image); err != nil {
		return nil, err
	}
	return f, f.image.Unpack(ctx, "overlayfs")
}

func (f *Floor) addBridge() error {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := f.host.LinkAdd(link); err != nil {
		return err
	}
	f.bridge = link.Index
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 0, 1), Mask: net.CIDRMask(16, 32)}}
	return errors.Join(f.host.AddrAdd(link, addr), f.host.LinkSetUp(link))
}

// Started is a container that runs.
type Started struct {
	floor     *Floor
	container containerd.Container
	task      containerd.Task
	pin, veth string
}

// Start makes and starts one container and returns when its process runs.
func (f *Floor) Start(ctx context.Context, args ...string) (*Started, error) {
	ctx = f.ctx(ctx)
	s, err := f.make(ctx, cio.NullIO, args...)
	if err != nil {
		return nil, err
	}
	return s, s.task.Start(ctx)
}

// make makes a container whose process was not started.
func (f *Floor) make(ctx context.Context, out cio.Creator, args ...string) (*Started, error) {
	n := f.count.Add(1)
	id := fmt.Sprintf("floor-%d", n)
	s := &Started{floor: f, pin: filepath.Join(f.dir, id), veth: fmt.Sprintf("fl%d", n)}
	if err := f.network(s, n); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	var err error
	s.container, err = f.client.NewContainer(ctx, id,
		containerd.WithImage(f.image), containerd.WithNewSnapshot(id, f.image),
		containerd.WithNewSpec(
			oci.WithImageConfigArgs(f.image, args),
			oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: s.pin}),
			oci.WithMemoryLimit(256<<20), oci.WithPidsLimit(4096), oci.WithCgroup("/"+cgroupName+"/"+id), oci.WithNoNewPrivileges,
			seccomp.WithDefaultProfile(), nativeOnly,
		))
	if err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	if s.task, err = s.container.NewTask(ctx, out); err != nil {
		return nil, fmt.Errorf("task: %w", err)
	}
	return s, nil
}

// nativeOnly cuts the profile to this architecture, as the product does.
func nativeOnly(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Linux.Seccomp.Architectures = s.Linux.Seccomp.Architectures[:1]
	return nil
}

// network makes and pins a namespace with an address on the bridge.
func (f *Floor) network(s *Started, n uint32) error {
	if err := os.WriteFile(s.pin, nil, 0o600); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { // its thread ends with it, inside the new namespace
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- unix.Mount("/proc/thread-self/ns/net", s.pin, "", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		return err
	}
	inside, err := netns.GetFromPath(s.pin)
	if err != nil {
		return err
	}
	defer inside.Close()
	attrs := netlink.LinkAttrs{Name: s.veth, MasterIndex: f.bridge, Flags: net.FlagUp}
	if err := f.host.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(inside)}); err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(inside)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, byte(n>>8), byte(n)), Mask: net.CIDRMask(16, 32)}}
	return errors.Join(h.AddrAdd(link, addr), h.LinkSetUp(link),
		h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IPv4(10, 99, 0, 1)}))
}

// Remove ends the container and everything that was made for it.
func (s *Started) Remove(ctx context.Context) error {
	ctx = s.floor.ctx(ctx)
	exit, err := s.task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := s.task.Kill(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	<-exit
	return s.remove(ctx)
}

// remove removes what is left of one that has ended.
func (s *Started) remove(ctx context.Context) error {
	_, err := s.task.Delete(ctx)
	return errors.Join(err, s.container.Delete(ctx, containerd.WithSnapshotCleanup),
		unix.Unmount(s.pin, unix.MNT_DETACH), os.Remove(s.pin))
}

// Close removes what Open made outside of containerd.
func (f *Floor) Close() error {
	err := f.host.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, Index: f.bridge}})
	f.host.Close()
	tops, globErr := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName)
	for _, top := range tops {
		err = errors.Join(err, unix.Rmdir(top))
	}
	return errors.Join(err, globErr, f.hostNS.Close(), f.client.Close())
}
