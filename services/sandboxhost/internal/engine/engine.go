// Package engine is the contract between a sandbox's keeper, which decides, and
// what makes containers, which acts.
//
// An engine owns every host object that it makes for a sandbox: namespaces,
// address, interface, snapshots, containers, tasks, cgroup, FIFOs, log
// segments. All of them are named after the sandbox's uid. It never decides what should run,
// keeps no notes about wishes, and never acts without being told.
//
// Every Action is idempotent: "already so" is success, and an action that was
// cut off in the middle by the death of the process is finished, or undone and done
// anew, by doing it again. A question that could not be answered is an error,
// never "none".
//
// In the trail of a sandbox this is the step after host.Next: the keeper calls
// Do with the action that Next chose, and looks again with Observe.
package engine

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Engine makes and observes the containers of sandboxes. Its methods may be
// called by many goroutines at once; calls for one sandbox come one at a time.
// All errors carry a kind of kit/fault: Unavailable means ask again later;
// Invalid, NotFound and Denied mean that this attempt cannot succeed (bad image
// reference, image or command that is not there, refused by the registry).
type Engine interface {
	// Survivors returns the uid of every sandbox of which the engine finds
	// anything at all on this node, in any state, half made or half removed
	// ones too. Containers and objects of others are not among them.
	Survivors(ctx context.Context) ([]id.Sandbox, error)

	// Observe returns what there is of a sandbox now. A sandbox of which there
	// is nothing gives an Observed with Empty() true and no error.
	Observe(ctx context.Context, uid id.Sandbox) (Observed, error)

	// Do carries out one action for one attempt of a sandbox and returns when
	// it is done. ctx bounds it; an action whose ctx ends may be half done and
	// is finished by doing it again.
	Do(ctx context.Context, a Attempt, action Action) error

	// What is done inside of sandboxes that run.
	Inside

	// What is missing or left over.
	Audit

	// Changes delivers the uid of a sandbox that should be observed again: a
	// container ended, was killed for memory, or something else was noticed. An
	// empty uid means all, after the engine was out of touch. Hints may be lost or repeated
	// when nobody reads in time, but then an empty uid follows. There is one reader.
	Changes() <-chan id.Sandbox
}

// Attempt is one life of one sandbox: what to make.
type Attempt struct {
	// Wish is the accepted wish.
	Wish *sandboxhostv1.Wish
	// SpecHash is SpecHash(Wish.Spec).
	SpecHash string
	// Number counts the lives, from 1.
	Number uint64
	// Images has the digest of the image of each container, by the name of that, as it
	// was found for an earlier life with the same spec. StepImages adds what is missing,
	// and takes another one for an image that is nowhere any more.
	Images map[string]string
	// Disks has the host path of each granted disk by its name.
	Disks map[string]string
	// Progress is called, if not nil, while a slow step goes on, with a sentence for
	// people such as "pulling example.org/web:1: 12 of 40 MiB". It must not block.
	Progress func(sentence string)
}

// Step names what an action does. Fault points and log lines use these names.
type Step string

// The steps, in the order in which a sandbox comes and goes.
const (
	// StepImages makes the images of all containers present and unpacked.
	StepImages Step = "prepare-images"
	// StepNamespaces pins the namespaces of the sandbox and its shared memory.
	StepNamespaces Step = "pin-namespaces"
	// StepNetwork gives it an address on the bridge. Not used with the node's
	// own network.
	StepNetwork Step = "attach-network"
	// StepCreate makes one container and its task, without starting it. What
	// is left of an earlier container with the same id is removed first, unless it runs.
	StepCreate Step = "create-container"
	// StepStart starts one created container.
	StepStart Step = "start-container"
	// StepLimits gives one running container the limits of the wish. One that does
	// not run any more is success.
	StepLimits Step = "update-limits"
	// StepPreStop runs the pre-stop command of one container and returns when it has
	// ended with code 0; Invalid and NotFound say that it ended otherwise or could not
	// be run. Done again while it runs, it waits for the same one. When ctx ends first the
	// command is ended by force. A container that has ended, or has no such
	// command, is success.
	StepPreStop Step = "pre-stop"
	// StepSignal sends Action.Signal to the main process of one container. A
	// container that has ended is success. SIGKILL ends all its processes.
	StepSignal Step = "signal-container"
	// StepDelete removes one container that does not run: what it wrote is
	// drained (2 s at most), then task, record, container, snapshot. The
	// caller has made its exit durable. A running one is Conflict.
	StepDelete Step = "delete-container"
	// StepEndShim ends the shim of a sandbox by force, and with it all of its
	// containers, whose ends nobody can tell then unless they were known before. Only for
	// one that does not answer. None there is success.
	StepEndShim Step = "end-shim"
	// StepRelease gives back address, interface, namespaces, shared memory,
	// cgroups and folders. Containers must be gone, else Conflict. What it wrote stays,
	// and so do the values of its secrets, which the next attempt asks for anew.
	StepRelease Step = "release-sandbox"
	// StepLogs removes all that lives as long as the sandbox: output, scratch volumes
	// and the values of its secrets.
	StepLogs Step = "remove-logs"
)

// Action is one step with what it applies to.
type Action struct {
	// Step is what to do.
	Step Step
	// Container is the name in the spec of the container, for the steps that
	// are about one and the wish.
	Container string
	// ContainerID is the id of the container, for StepLimits, StepPreStop,
	// StepSignal and StepDelete; for the last three it may belong to another attempt or
	// generation than the Attempt.
	ContainerID string
	// Signal is for StepSignal.
	Signal syscall.Signal
}

// Observed is what there is of one sandbox.
type Observed struct {
	// UID of the sandbox.
	UID id.Sandbox
	// Namespaces is true when all its namespaces are pinned and whole.
	Namespaces bool
	// Addresses on the bridge, when its network is attached and whole.
	Addresses []netip.Addr
	// Containers are all of its containers, of any attempt, ordered by id.
	Containers []Container
	// Silent is true when the shim, which holds the containers for the runtime, does not
	// answer. What is said of them is then what was known before: one that was started
	// counts as Running until its end is known. The sandbox is hinted at by nobody
	// when that changes.
	Silent bool
	// Remains is true when there is anything else of it on the node but
	// logs: pins, an interface, an address in the ledger, a cgroup, a folder, a lease.
	Remains bool
	// Logs is true when something is kept that lives as long as it: output, a scratch
	// volume, or values of secrets.
	Logs bool
}

// Empty says that nothing of the sandbox is left but what it wrote.
func (o Observed) Empty() bool {
	return !o.Namespaces && !o.Remains && len(o.Addresses) == 0 && len(o.Containers) == 0
}

// ContainerState is what a container does.
type ContainerState int

// The states of a container.
const (
	// Created: there is a container; it has no task, or one that was not started.
	Created ContainerState = iota + 1
	// Running: its main process lives.
	Running
	// Exited: its main process has ended; Exit says how.
	Exited
)

// Container is one container as the engine finds it.
type Container struct {
	// ID at the runtime.
	ID string
	// Note is what was kept with it. Nil means that it cannot be read by this
	// version: the container is kept as it is and shown.
	Note *sandboxhostv1.ContainerNote
	// State is what it does.
	State ContainerState
	// Task is true when the task exists, so that a Created one can be started.
	Task bool
	// PID of its main process while it runs.
	PID uint32
	// Limits that it has while it runs; nil is the same as empty.
	Limits *resourcev1.ResourceLimits
	// StartedAt is when its main process was started, zero if never.
	StartedAt time.Time
	// OOMKills is how many of its processes the kernel has ended for memory, while it
	// runs. The kernel counts, so nothing is missed while nobody asks.
	OOMKills uint64
	// OOMKillsBeside is how many of those were a Command or a Beside, in any state: each
	// that was found ended so, also in an earlier life of this process.
	OOMKillsBeside uint64
	// Exit says how it ended. Set exactly when State is Exited.
	Exit *Exit
}

// Exit says how a container ended.
type Exit struct {
	// Code is the exit code, 128 + signal if one ended it.
	Code uint32
	// OOMKilled is true when the kernel ended its main process for memory.
	OOMKilled bool
	// OOMKills is how many of its processes the kernel had ended for memory by then,
	// the main one among them if OOMKilled.
	OOMKills uint64
	// Unknown is true when nobody can tell; Code means nothing then.
	Unknown bool
	// At is when it ended, or when that was noticed if Unknown.
	At time.Time
}
