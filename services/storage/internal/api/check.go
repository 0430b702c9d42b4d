package api

import (
	"context"

	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
	"staddle.internal/services/storage/internal/volume"
)

// maxDifferences is how many an answer carries, as the contract states it.
const maxDifferences = 1000

// faults are those of the contract.
var faults = map[volume.Fault]storagev1.VolumeFault{
	volume.NotMounted: storagev1.VolumeFault_VOLUME_FAULT_NOT_MOUNTED,
	volume.MountLeft:  storagev1.VolumeFault_VOLUME_FAULT_MOUNT_LEFT,
	volume.FolderLeft: storagev1.VolumeFault_VOLUME_FAULT_FOLDER_LEFT,
	volume.Broken:     storagev1.VolumeFault_VOLUME_FAULT_BROKEN,
}

// CheckVolumes is documented in the contract.
func (s *Server) CheckVolumes(ctx context.Context, r *storagev1.CheckVolumesRequest) (*storagev1.CheckVolumesResponse, error) {
	list, volumes, err := s.store.Check(ctx, r.GetFix())
	if err != nil {
		return nil, err
	}
	resp := &storagev1.CheckVolumesResponse{Volumes: uint32(volumes), MoreDifferences: uint32(max(0, len(list)-maxDifferences))}
	for _, d := range list[:min(len(list), maxDifferences)] {
		m := &storagev1.VolumeDifference{Fault: faults[d.Fault], Path: d.Path, Uid: string(d.UID), Message: d.Message, Fixed: d.Fixed}
		if d.Err != nil {
			m.Error = d.Err.Error()
		}
		resp.Differences = append(resp.Differences, m)
	}
	return resp, nil
}
