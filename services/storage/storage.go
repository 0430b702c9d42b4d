// Package storage is the composition of the two processes of this module:
// storage, which owns the volumes of a node, and storage-agent, which makes them
// match desired state through storage's socket.
package storage

import (
	"context"
	"path/filepath"
	"time"

	"staddle.internal/kit/process"
	"staddle.internal/kit/rpc/validate"
	"staddle.internal/kit/run"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
	"staddle.internal/services/storage/internal/api"
	"staddle.internal/services/storage/internal/volume"
)

// Main runs the process storage until a signal and returns its exit code. It is
// ready when every volume was recovered.
func Main() int { return process.Main("storage", build) }

func build(_ context.Context, p *process.Process) ([]run.Member, error) {
	store := volume.New(
		filepath.Join(p.Paths.Var("storage"), "volumes"),
		filepath.Join(p.Paths.Run(), "storage"),
		volume.Kernel{}, p.Log)
	rules, err := validate.New(&storagev1.EnsureVolumeRequest{}, &storagev1.AttachVolumeRequest{}, &storagev1.DetachVolumeRequest{},
		&storagev1.RemoveVolumeRequest{}, &storagev1.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	p.Server.Use(rules)
	storagev1.RegisterStorageServiceServer(p.Server.GRPC(), api.New(store))
	return []run.Member{{
		Name:        "volumes",
		StopTimeout: 5 * time.Second,
		Run: func(ctx context.Context, ready func()) error {
			if err := store.Recover(ctx); err != nil {
				return err
			}
			ready()
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}}, nil
}
