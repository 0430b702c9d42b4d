// Package teardown takes everything of a node out of the kernel when the node's
// own processes are stopped: workloads, shims, mounts, namespaces, interfaces,
// rules, cgroups, and the folder that ends with the boot. What is durable stays,
// so that a later start continues as after a reboot.
//
// It asks nobody and needs nobody: it works on a node whose containerd or journal
// is broken. Where the journal can be read, each workload has its own grace period. It finds things by where they lie (below the node's root) and by the
// names of its configuration, and must never touch anything else. It stands
// outside the trail; the command "staddle down" is what calls it.
package teardown

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/balance"
	"staddle.internal/services/sandboxhost/internal/cgroup"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/network"
)

// Config says which node to take down.
type Config struct {
	// Paths of the node.
	Paths config.Paths
	// Node is its node.yaml, resolved.
	Node *config.Node
	// Limit is how long workloads may take to end by themselves at most, whatever
	// their own grace periods say.
	Limit time.Duration
	// BootID is that of the running kernel.
	BootID string
}

// owners are the processes that use what is taken away, the first one first to start.
var owners = []string{"supervisor", "coordinator", "clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence"}

// Run takes the node down. Safe to repeat; on a machine without anything of the
// node it does nothing. It returns Conflict while a process of the node runs, keeps
// all of them from starting meanwhile, and goes on past single failures, which it
// returns together.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	release, err := process.Hold(ctx, cfg.Paths, owners...)
	if err != nil {
		return fmt.Errorf("take down node: %w", err)
	}
	defer release()
	if err := refuseWhileServed(cfg.Paths); err != nil {
		return err
	}
	groups, err := cgroup.Open()
	if err != nil {
		return err
	}
	d := down{cfg: cfg, log: log, groups: groups}
	d.mark()
	return errors.Join(
		d.endWorkloads(ctx),
		d.endShims(ctx),
		d.unmount(),
		d.dropNetwork(ctx),
		d.removeCgroups(),
		d.emptyRun(),
	)
}

// mark notes that workloads are ended with the node, before the first one is: none of
// them counts as crashed then. Without room for the note they do.
func (d down) mark() {
	folder := d.cfg.Paths.Var("sandboxhost")
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return // it never ran
	}
	if err := host.MarkTakenDown(folder, d.cfg.BootID); err != nil {
		d.log.Warn("take-down not noted", logging.Err(err))
	}
}

type down struct {
	cfg    Config
	log    *slog.Logger
	groups *cgroup.Tree
}

// refuseWhileServed keeps it from taking the floor away under a running node.
func refuseWhileServed(p config.Paths) error {
	sockets, err := filepath.Glob(filepath.Join(p.Run(), "*.sock"))
	if err != nil {
		return err
	}
	for _, path := range sockets {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = conn.Close()
			return fault.New(fault.Conflict, "take down node: %s is served; stop its supervisor first", path)
		}
	}
	return nil
}

// endShims ends the shims of this node's containerd, which have nothing to do any
// more.
func (d down) endShims(ctx context.Context) error {
	pids, err := d.shims()
	if err != nil || len(pids) == 0 {
		return err
	}
	procs := openAll(pids)
	defer procs.close()
	procs.signal(unix.SIGKILL)
	if !procs.wait(ctx, 5*time.Second) {
		return fault.New(fault.Unavailable, "end shims: some do not end")
	}
	return nil
}

// unmount unmounts everything below the node's folders, the innermost first.
func (d down) unmount() error {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for _, info := range slices.Backward(infos) {
		if !d.ours(info.Mountpoint) {
			continue
		}
		err := unix.Unmount(info.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(info.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
			d.log.Warn("busy mount detached", logging.Path(info.Mountpoint))
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // not a mount any more
			errs = append(errs, fmt.Errorf("unmount %s: %w", info.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

func (d down) ours(path string) bool {
	for _, dir := range []string{d.cfg.Paths.Run(), d.cfg.Paths.Var("")} {
		if strings.HasPrefix(path, filepath.Clean(dir)+"/") {
			return true
		}
	}
	return false
}

func (d down) dropNetwork(ctx context.Context) error {
	c := d.cfg.Node.Network
	services := balance.New(balance.Config{Bridge: c.Bridge, Gateway: c.Gateway(), Prefixes: c.ServicePrefixes}, d.log)
	return errors.Join(services.Remove(), network.New(network.Config{
		Bridge: c.Bridge, Subnet: c.Subnet, Subnet6: c.Subnet6, Ledger: filepath.Join(d.cfg.Paths.Var("sandboxhost"), "network.db"),
	}, network.Deps{Log: d.log}).Teardown(ctx))
}

// removeCgroups removes the cgroups of sandboxes and of components, and the one of
// all nodes' components if no other node uses it.
func (d down) removeCgroups() error {
	components := d.cfg.Paths.ComponentCgroup()
	err := errors.Join(d.groups.Remove(d.cfg.Node.Sandboxes.CgroupParent), d.groups.Remove(components))
	shared := filepath.Dir(components)
	if shared == "." {
		return err
	}
	return errors.Join(err, d.groups.RemoveEmpty(shared))
}

// emptyRun removes what ends with the boot: sockets, pins, FIFOs, states. It
// never removes through a mount.
func (d down) emptyRun() error {
	run := d.cfg.Paths.Run()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(run))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, info := range infos {
		if info.Mountpoint != run {
			return fault.New(fault.Unavailable, "empty %s: %s is still mounted", run, info.Mountpoint)
		}
	}
	if err := os.RemoveAll(d.cfg.Paths.SocketSpares()); err != nil { // of a supervisor that was killed
		return fmt.Errorf("empty %s: %w", run, err)
	}
	entries, err := os.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", run, err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(run, e.Name())); err != nil {
			return fmt.Errorf("empty %s: %w", run, err)
		}
	}
	return nil
}
