package bed

import (
	"context"
	"path/filepath"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"staddle.internal/kit/rpc"
)

// Planted says how something is put into containerd.
type Planted struct {
	// Sandbox that it is labelled with; without one it is of somebody else.
	Sandbox string
	// Like is the container whose notes it gets a copy of.
	Like string
}

// containerd connects to the machine's containerd, for a minute at most, in one of its
// namespaces. The caller says when it is done.
func (b *Bed) containerd(namespace string) (ctx context.Context, conn *grpc.ClientConn, done func()) {
	b.t.Helper()
	conn, err := rpc.Dial(filepath.Join(b.Paths.Run(), "containerd.sock"), rpc.DialConfig{})
	b.must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace), conn, func() {
		cancel()
		_ = conn.Close() // everything was answered
	}
}

// PlantInContainerd puts a container with its snapshot and start record into a
// namespace of containerd; with what is of somebody else a lease too.
func (b *Bed) PlantInContainerd(namespace, containerID string, p Planted) {
	b.t.Helper()
	ctx, conn, done := b.containerd(namespace)
	defer done()
	record := &containersapi.Container{
		ID: containerID, Runtime: &containersapi.Container_Runtime{Name: "io.containerd.runc.v2"},
		Snapshotter: "overlayfs", SnapshotKey: containerID,
	}
	containers := containersapi.NewContainersClient(conn)
	if p.Like != "" {
		like, err := containers.Get(ctx, &containersapi.GetContainerRequest{ID: p.Like})
		b.must(err)
		record.Extensions, record.Spec = like.GetContainer().GetExtensions(), like.GetContainer().GetSpec()
	}
	labels := map[string]string{}
	if p.Sandbox != "" {
		record.Labels = map[string]string{"staddle.internal/sandbox": p.Sandbox}
		labels = record.Labels
	}
	_, err := containers.Create(ctx, &containersapi.CreateContainerRequest{Container: record})
	b.must(err)
	_, err = snapshotsapi.NewSnapshotsClient(conn).Prepare(ctx, &snapshotsapi.PrepareSnapshotRequest{
		Snapshotter: "overlayfs", Key: containerID,
		Labels: map[string]string{"containerd.io/gc.root": "planted"},
	})
	b.must(err)
	_, err = sandboxapi.NewStoreClient(conn).Create(ctx, &sandboxapi.StoreCreateRequest{Sandbox: &types.Sandbox{
		SandboxID: containerID, Sandboxer: "shim", Runtime: &types.Sandbox_Runtime{Name: "io.containerd.runc.v2"}, Labels: labels,
	}})
	b.must(err)
	if p.Sandbox == "" { // of ours there are none that nobody needs before a day is over
		_, err = leasesapi.NewLeasesClient(conn).Create(ctx, &leasesapi.CreateRequest{ID: "foreign-" + containerID})
		b.must(err)
	}
}

// ForgetInContainerd takes away containerd's record of a container of the node, and
// nothing else: its task goes on.
func (b *Bed) ForgetInContainerd(containerID string) {
	b.t.Helper()
	ctx, conn, done := b.containerd("staddle")
	defer done()
	_, err := containersapi.NewContainersClient(conn).Delete(ctx, &containersapi.DeleteContainerRequest{ID: containerID})
	b.must(err)
}
