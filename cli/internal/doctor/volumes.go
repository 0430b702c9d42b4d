package doctor

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/exit"

	storagev1 "staddle.internal/proto/gen/staddle/storage/v1"
)

// storageName is the process that owns volumes.
const storageName = "storage"

// askStorage has storage compare its notes with folders and mounts. A node that has no
// such process has no volumes.
func askStorage(ctx context.Context, o Options, p *part) {
	if !has(o, storageName) {
		return
	}
	var resp *storagev1.CheckVolumesResponse
	err := reach(ctx, storageName, o.Paths.Socket(storageName), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if err := answers(ctx, conn); err != nil {
			return err
		}
		resp, err = storagev1.NewStorageServiceClient(conn).CheckVolumes(ctx, &storagev1.CheckVolumesRequest{Fix: o.Fix})
		return err
	})
	if err != nil {
		do := exit.Hint(err)
		if do == "" {
			do = "staddle status; once storage is ready, this again"
		}
		p.problem(storageName, "volumes could not be compared with their notes: "+err.Error(), do)
		return
	}
	for _, d := range resp.GetDifferences() {
		p.findings = append(p.findings, volumeDiffers(d, o.Fix))
	}
	if more := resp.GetMoreDifferences(); more > 0 {
		p.problem(storageName, fmt.Sprintf("%d more differences of volumes are not shown", more), fixWord)
	}
	p.fact(fmt.Sprintf("volumes %d", resp.GetVolumes()))
}

// has says whether a process is part of this node. One whose configuration cannot be
// read has nobody to ask, which askProcesses says.
func has(o Options, name string) bool {
	node, err := config.LoadNode(o.Paths.NodeFile())
	if err != nil {
		return false
	}
	for _, c := range node.Graph() {
		if c.Name == name {
			return true
		}
	}
	return false
}

// faultWord is the kind of object that a fault is about.
func faultWord(f storagev1.VolumeFault) string {
	switch f {
	case storagev1.VolumeFault_VOLUME_FAULT_NOT_MOUNTED, storagev1.VolumeFault_VOLUME_FAULT_MOUNT_LEFT:
		return "mount"
	case storagev1.VolumeFault_VOLUME_FAULT_FOLDER_LEFT:
		return "folder"
	default:
		return "volume"
	}
}

// volumeDiffers makes a sentence of a difference.
func volumeDiffers(d *storagev1.VolumeDifference, fixing bool) Finding {
	f := Finding{State: Problem, Part: "volume", Do: fixWord, Volume: d}
	switch d.GetFault() {
	case storagev1.VolumeFault_VOLUME_FAULT_NOT_MOUNTED:
		f.What = fmt.Sprintf("volume %s is not mounted at %s, and %s", d.GetUid(), d.GetPath(), d.GetMessage())
	case storagev1.VolumeFault_VOLUME_FAULT_MOUNT_LEFT:
		f.What = "the mount at " + d.GetPath() + " is left over"
	case storagev1.VolumeFault_VOLUME_FAULT_FOLDER_LEFT:
		f.What = "the folder " + d.GetPath() + " is left over"
	case storagev1.VolumeFault_VOLUME_FAULT_BROKEN:
		f.What = d.GetMessage()
		f.Do = "put its volume.json back from a backup, or delete the disk; then staddle component restart storage"
		return f
	default:
		f.What = fmt.Sprintf("%s: %s", d.GetPath(), d.GetMessage())
	}
	switch {
	case d.GetFixed():
		f.State, f.Do = Fixed, ""
	case fixing:
		f.What += "; not mended: " + d.GetError()
		f.Do = "look at staddle component logs storage, then " + fixWord
	}
	return f
}
