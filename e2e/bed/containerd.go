package bed

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/rpc"
)

// Containerd lists what containerd holds for the node: containers, tasks, records
// of sandboxes, snapshots and leases, each with its kind.
func (b *Bed) Containerd(ctx context.Context) ([]string, error) {
	return b.ContainerdIn(ctx, "staddle")
}

// ContainerdIn is Containerd for another of its namespaces.
func (b *Bed) ContainerdIn(ctx context.Context, namespace string) ([]string, error) {
	conn, err := rpc.Dial(filepath.Join(b.Paths.Run(), "containerd.sock"), rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	var all []string
	note := func(kind, id string) { all = append(all, kind+" "+id) }

	containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers.GetContainers() {
		note("container", c.GetID())
	}
	tasks, err := tasksapi.NewTasksClient(conn).List(ctx, &tasksapi.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	for _, t := range tasks.GetTasks() {
		note("task", t.GetID())
	}
	records, err := sandboxapi.NewStoreClient(conn).List(ctx, &sandboxapi.StoreListRequest{})
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	for _, r := range records.GetList() {
		note("record", r.GetSandboxID())
	}
	leases, err := leasesapi.NewLeasesClient(conn).List(ctx, &leasesapi.ListRequest{})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	for _, l := range leases.GetLeases() {
		note("lease", l.GetID())
	}
	snapshots, err := snapshotsapi.NewSnapshotsClient(conn).List(ctx, &snapshotsapi.ListSnapshotsRequest{Snapshotter: "overlayfs"})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	for {
		m, err := snapshots.Recv()
		if err != nil {
			break // the end, or a stream that a test which needs it whole sees change
		}
		for _, s := range m.GetInfo() {
			note("snapshot", s.GetName())
		}
	}
	slices.Sort(all)
	return all, nil
}
