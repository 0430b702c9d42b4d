// Package api is the door of storage: it turns requests of the contract into
// calls of the volume store, and what is found into messages.
//
// It holds no rule about volumes; those are in package volume. In the trail of a
// disk it is the step between the agent and the store.
package api

import (
	"context"
	"sort"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
	"staddle.internal/services/storage/internal/volume"
)

// Bounds of a page, as the contract states them.
const (
	defaultPage = 100
	maxPage     = 1000
)

// Server serves StorageService.
type Server struct {
	storagev1.UnimplementedStorageServiceServer
	store *volume.Store
}

// New makes a server over a store.
func New(store *volume.Store) *Server { return &Server{store: store} }

// EnsureVolume is documented in the contract.
func (s *Server) EnsureVolume(_ context.Context, r *storagev1.EnsureVolumeRequest) (*storagev1.EnsureVolumeResponse, error) {
	v, err := s.store.Ensure(id.Disk(r.GetUid()))
	if err != nil {
		return nil, err
	}
	return &storagev1.EnsureVolumeResponse{Volume: message(v)}, nil
}

// AttachVolume is documented in the contract.
func (s *Server) AttachVolume(_ context.Context, r *storagev1.AttachVolumeRequest) (*storagev1.AttachVolumeResponse, error) {
	v, err := s.store.Attach(id.Disk(r.GetUid()), id.Sandbox(r.GetHolder()), r.GetEpoch())
	if err != nil {
		return nil, err
	}
	return &storagev1.AttachVolumeResponse{Volume: message(v)}, nil
}

// DetachVolume is documented in the contract.
func (s *Server) DetachVolume(_ context.Context, r *storagev1.DetachVolumeRequest) (*storagev1.DetachVolumeResponse, error) {
	end := s.store.Detach
	if r.GetKeepRight() {
		end = s.store.Park
	}
	if err := end(id.Disk(r.GetUid()), id.Sandbox(r.GetHolder()), r.GetEpoch()); err != nil {
		return nil, err
	}
	return &storagev1.DetachVolumeResponse{}, nil
}

// RemoveVolume is documented in the contract.
func (s *Server) RemoveVolume(_ context.Context, r *storagev1.RemoveVolumeRequest) (*storagev1.RemoveVolumeResponse, error) {
	if err := s.store.Remove(id.Disk(r.GetUid())); err != nil {
		return nil, err
	}
	return &storagev1.RemoveVolumeResponse{}, nil
}

// ListVolumes is documented in the contract. The token of a page is the uid
// that the page before ended with.
func (s *Server) ListVolumes(_ context.Context, r *storagev1.ListVolumesRequest) (*storagev1.ListVolumesResponse, error) {
	after := r.GetPageToken()
	if after != "" && id.CheckUID(after) != nil {
		return nil, fault.New(fault.Invalid, "page_token: %q was not made by this server; leave it empty to begin", after)
	}
	volumes, err := s.store.List()
	if err != nil {
		return nil, err
	}
	volumes = volumes[sort.Search(len(volumes), func(i int) bool { return string(volumes[i].UID) > after }):]
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	size = min(size, maxPage)
	resp := &storagev1.ListVolumesResponse{}
	if len(volumes) > size {
		volumes = volumes[:size]
		resp.NextPageToken = string(volumes[size-1].UID)
	}
	for _, v := range volumes {
		resp.Volumes = append(resp.Volumes, message(v))
	}
	return resp, nil
}

func message(v volume.Volume) *storagev1.Volume {
	m := &storagev1.Volume{
		Uid: string(v.UID), Phase: storagev1.VolumePhase_VOLUME_PHASE_AVAILABLE, Message: v.Broken,
		Holder: string(v.Holder), Epoch: v.Epoch, Path: v.Path,
	}
	switch {
	case v.Broken != "":
		m.Phase = storagev1.VolumePhase_VOLUME_PHASE_BROKEN
	case v.Holder != "":
		m.Phase = storagev1.VolumePhase_VOLUME_PHASE_ATTACHED
	}
	if !v.CreatedAt.IsZero() {
		m.CreatedAt = timestamppb.New(v.CreatedAt)
	}
	return m
}
