// Package inventory compares what is on the node with what the notes say should
// be: the decision behind "staddle doctor", pure and without any effect.
//
// Engines list what there is; the host says of each sandbox what it may have; the
// difference of the two is what is missing and what is left over. It must never
// look at anything itself, and never call a sandbox different that is in the
// middle of a step. It stands outside the trail, beside adoption.
package inventory

import (
	"time"

	"staddle.internal/kit/id"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Kind is a kind of object.
type Kind = sandboxhostv1.ObjectKind

// Short names of the kinds.
const (
	Container   = sandboxhostv1.ObjectKind_OBJECT_KIND_CONTAINER
	Task        = sandboxhostv1.ObjectKind_OBJECT_KIND_TASK
	StartRecord = sandboxhostv1.ObjectKind_OBJECT_KIND_START_RECORD
	Snapshot    = sandboxhostv1.ObjectKind_OBJECT_KIND_SNAPSHOT
	Lease       = sandboxhostv1.ObjectKind_OBJECT_KIND_LEASE
	Shim        = sandboxhostv1.ObjectKind_OBJECT_KIND_SHIM
	ShimSocket  = sandboxhostv1.ObjectKind_OBJECT_KIND_SHIM_SOCKET
	TaskFolder  = sandboxhostv1.ObjectKind_OBJECT_KIND_TASK_FOLDER
	Namespace   = sandboxhostv1.ObjectKind_OBJECT_KIND_NAMESPACE
	Mount       = sandboxhostv1.ObjectKind_OBJECT_KIND_MOUNT
	Interface   = sandboxhostv1.ObjectKind_OBJECT_KIND_INTERFACE
	Address     = sandboxhostv1.ObjectKind_OBJECT_KIND_ADDRESS
	Network     = sandboxhostv1.ObjectKind_OBJECT_KIND_NETWORK
	Cgroup      = sandboxhostv1.ObjectKind_OBJECT_KIND_CGROUP
	Pipe        = sandboxhostv1.ObjectKind_OBJECT_KIND_PIPE
	Folder      = sandboxhostv1.ObjectKind_OBJECT_KIND_FOLDER
	Output      = sandboxhostv1.ObjectKind_OBJECT_KIND_OUTPUT
	Scratch     = sandboxhostv1.ObjectKind_OBJECT_KIND_SCRATCH
)

// Object is one thing on the node.
type Object struct {
	// Kind and Name are its identity.
	Kind Kind
	Name string
	// UID of its sandbox. Empty if it does not tell.
	UID id.Sandbox
	// Container is the id of the container that it belongs to, empty if it belongs
	// to all of the sandbox.
	Container string
	// Since is when it came. Zero if it does not tell.
	Since time.Time
}

// Stock is what the notes say of one sandbox.
type Stock struct {
	// UID and Name of it. An orphan has no name.
	UID  id.Sandbox
	Name string
	// Seq counts the changes of its status: it is the same only if nothing happened
	// in between.
	Seq uint64
	// Quiet says that it is at rest. One that is not is not compared; Activity says
	// what it does.
	Quiet    bool
	Activity string
	// Stands says that there may be what its containers share: namespaces, address,
	// control group, folder. Runs says that there must be.
	Stands, Runs bool
	// Written says that output and scratch volumes may be kept.
	Written bool
	// HostNetwork says that it has the network of the node.
	HostNetwork bool
	// Containers are the ids of those that may be there, Running of those that must
	// be and run.
	Containers, Running []string
}

// Difference is one object that is not as the notes say.
type Difference struct {
	Object
	// Missing is true for one that should be there, false for one that is left over.
	Missing bool
}
