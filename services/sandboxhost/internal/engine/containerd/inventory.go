package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/inventory"
	"staddle.internal/services/sandboxhost/internal/namespace"
	"staddle.internal/services/sandboxhost/internal/network"
)

// stock is an inventory that is being taken.
type stock struct {
	objects []inventory.Object
	// foreign are ids that containers of others have, which may look like ours.
	foreign map[string]bool
}

func (s *stock) add(o inventory.Object) { s.objects = append(s.objects, o) }

// of notes an object of one container, if that is ours.
func (s *stock) of(kind inventory.Kind, name, containerID string, since time.Time) {
	uid, _, _, ok := splitID(containerID)
	if ok && !s.foreign[containerID] {
		s.add(inventory.Object{Kind: kind, Name: name, UID: uid, Container: containerID, Since: since})
	}
}

// Inventory lists all that is there. See engine.Audit.
func (e *Engine) Inventory(ctx context.Context) ([]inventory.Object, error) {
	if _, err := e.ask(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, questionLimit)
	defer cancel()
	s := &stock{foreign: map[string]bool{}}
	for _, list := range []func(context.Context, *stock) error{ // containers first: they tell who is foreign
		e.listContainers, e.listTasks, e.listRecords, e.listSnapshots, e.listLeases,
		e.listShims, e.listShimSockets, e.listTaskFolders, e.listMounts, e.listFolders, e.listCgroups, e.listNetwork,
	} {
		if err := list(ctx, s); err != nil {
			return nil, fmt.Errorf("take inventory: %w", err)
		}
	}
	return s.objects, nil
}

// Parts names what a sandbox that runs must have. See engine.Audit.
func (e *Engine) Parts(s inventory.Stock) []inventory.Object {
	var parts []inventory.Object
	shared := func(kind inventory.Kind, name string) {
		parts = append(parts, inventory.Object{Kind: kind, Name: name, UID: s.UID})
	}
	shared(inventory.Folder, e.pins.Dir(s.UID))
	shared(inventory.Namespace, e.pins.Path(s.UID, namespace.IPC))
	shared(inventory.Namespace, e.pins.Path(s.UID, namespace.UTS))
	shared(inventory.Mount, e.pins.Shm(s.UID))
	shared(inventory.Cgroup, e.group(s.UID.Lower()))
	if !s.HostNetwork {
		shared(inventory.Namespace, e.pins.Path(s.UID, namespace.Net))
		shared(inventory.Interface, network.HostInterface(s.UID))
	}
	if len(s.Running) > 0 {
		shared(inventory.Shim, s.UID.Lower())
	}
	for _, containerID := range s.Running {
		for _, kind := range []inventory.Kind{inventory.Container, inventory.Task, inventory.StartRecord, inventory.Snapshot} {
			parts = append(parts, inventory.Object{Kind: kind, Name: containerID, UID: s.UID, Container: containerID})
		}
	}
	return parts
}

// Version of containerd. See engine.Audit.
func (e *Engine) Version(ctx context.Context) (string, error) {
	c, err := e.ask()
	if err != nil {
		return "", err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return "", unavailable("ask containerd for its version", err)
	}
	return v.Version, nil
}

func (e *Engine) listContainers(ctx context.Context, s *stock) error {
	records, err := e.client.ContainerService().List(ctx)
	if err != nil {
		return unavailable("list containers", err)
	}
	for _, r := range records {
		uid, err := id.ParseSandbox(r.Labels[labelSandbox])
		if err != nil {
			s.foreign[r.ID], s.foreign[r.SnapshotKey] = true, true
			continue
		}
		s.add(inventory.Object{Kind: inventory.Container, Name: r.ID, UID: uid, Container: r.ID, Since: r.CreatedAt})
	}
	return nil
}

func (e *Engine) listTasks(ctx context.Context, s *stock) error {
	list, err := e.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return unavailable("list tasks", errgrpc.ToNative(err))
	}
	for _, t := range list.GetTasks() {
		s.of(inventory.Task, t.GetID(), t.GetID(), time.Time{})
	}
	return nil
}

func (e *Engine) listRecords(ctx context.Context, s *stock) error {
	records, err := e.client.SandboxStore().List(ctx)
	if err != nil {
		return unavailable("list start records", err)
	}
	for _, r := range records {
		if _, ours := r.Labels[labelSandbox]; ours {
			s.of(inventory.StartRecord, r.ID, r.ID, r.CreatedAt)
		}
	}
	return nil
}

func (e *Engine) listSnapshots(ctx context.Context, s *stock) error {
	err := e.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		switch {
		case info.Kind == snapshots.KindActive:
			s.of(inventory.Snapshot, info.Name, info.Name, info.Created)
		case strings.HasPrefix(info.Name, viewPrefix) && now().Sub(info.Created) > viewLife: // nobody looks for so long
			s.add(inventory.Object{Kind: inventory.Snapshot, Name: info.Name, Since: info.Created})
		}
		return nil
	})
	if err != nil {
		return unavailable("list snapshots", err)
	}
	return nil
}

// listLeases lists those of pulls whose time is over.
func (e *Engine) listLeases(ctx context.Context, s *stock) error {
	left, err := image.LeftLeases(ctx, e.client, now())
	if err != nil {
		return unavailable("list leases", err)
	}
	for _, l := range left {
		s.add(inventory.Object{Kind: inventory.Lease, Name: l.ID, Since: l.CreatedAt})
	}
	return nil
}

// splitID undoes engine.ContainerID.
func splitID(containerID string) (uid id.Sandbox, name string, attempt uint64, ok bool) {
	uid, ok = sandboxOf(containerID)
	rest := strings.TrimPrefix(containerID, uid.Lower()+"-")
	at := strings.LastIndexByte(rest, '-')
	if !ok || at < 1 {
		return "", "", 0, false
	}
	if _, err := fmt.Sscanf(rest[at+1:], "%d", &attempt); err != nil {
		return "", "", 0, false
	}
	return uid, rest[:at], attempt, engine.ContainerID(uid, rest[:at], attempt) == containerID
}

// taskFolders are where containerd and runc keep a folder per task.
func (e *Engine) taskFolders() []string { return []string{e.bundles(), e.runcFolder()} }

func (e *Engine) bundles() string {
	return filepath.Join(e.cfg.State, "io.containerd.runtime.v2.task", e.cfg.Namespace)
}

func (e *Engine) runcFolder() string {
	return filepath.Join(e.cfg.Paths.Run(), "runc", e.cfg.Namespace)
}
