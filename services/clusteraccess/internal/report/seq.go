package report

import (
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Seq returns the seq of the status of a record, and false if it has no status
// with one.
func Seq(r *resourcev1.Resource) (uint64, bool) {
	n := seq(r)
	return n, n > 0
}

func seq(r *resourcev1.Resource) uint64 {
	switch r.GetKind().(type) {
	case *resourcev1.Resource_Node:
		return r.GetNode().GetStatus().GetSeq()
	case *resourcev1.Resource_Sandbox:
		return r.GetSandbox().GetStatus().GetSeq()
	case *resourcev1.Resource_Disk:
		return r.GetDisk().GetStatus().GetSeq()
	case *resourcev1.Resource_DiskLease:
		return r.GetDiskLease().GetStatus().GetSeq()
	}
	return 0
}
