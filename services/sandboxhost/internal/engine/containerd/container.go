package containerd

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// What we keep with a container at the runtime.
const (
	// labelSandbox is the uid of its sandbox: by it our containers are found.
	labelSandbox = "staddle.internal/sandbox"
	// labelGroup is its control group.
	labelGroup = "staddle.internal/cgroup"
	// extensionNote is its ContainerNote.
	extensionNote = "staddle.internal/note"
	// noteFormat is the version of the note that we write, and the newest that we
	// read.
	noteFormat = 1
)

// container is what we know of one container beside its state: what never
// changes, and what was found out at some cost.
type container struct {
	id       string
	uid      id.Sandbox
	note     *sandboxhostv1.ContainerNote // nil if this version cannot read it
	group    string
	snapshot string

	// Guarded by the engine's mu.
	startedAt time.Time // zero while unknown
	limits    *resourcev1.ResourceLimits
	lostAt    time.Time    // when its task was found missing
	exit      *engine.Exit // once known
	kills     kills
}

// readNote reads the note of a record. A note of a newer version is an error.
func readNote(record containers.Container) (*sandboxhostv1.ContainerNote, error) {
	kept, ok := record.Extensions[extensionNote]
	if !ok {
		return nil, errors.New("there is none")
	}
	note := &sandboxhostv1.ContainerNote{}
	if err := typeurl.UnmarshalTo(kept, note); err != nil {
		return nil, err
	}
	if note.GetFormat() < 1 || note.GetFormat() > noteFormat {
		return nil, fault.New(fault.Conflict, "its format is %d, this version reads up to %d", note.GetFormat(), noteFormat)
	}
	return note, nil
}

// of lists the containers of one sandbox, ordered by id.
func (e *Engine) of(uid id.Sandbox) []*container {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*container
	for _, c := range e.containers {
		if c.uid == uid {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *container) int { return strings.Compare(a.id, b.id) })
	return list
}

// known returns what we know of a container, or nil.
func (e *Engine) known(containerID string) *container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.containers[containerID]
}

// remember notes a container before it is made, so that it is looked for
// whatever becomes of the making.
func (e *Engine) remember(c *container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[c.id] = c
}

func (e *Engine) forget(containerID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.containers, containerID)
}

// brief is what an error of the runtime says, without the prefixes of the wire.
func brief(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "desc = "); i >= 0 {
		text = text[i+len("desc = "):]
	}
	return strings.Trim(text, `"`)
}

// refused gives an error of making or starting a container its kind: what the
// image or the spec is to blame for ends the attempt, everything that may pass by
// itself is asked for again.
func refused(doing string, err error) error {
	text := brief(err)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
	}
	switch {
	case has("no space left on device"):
		return fault.WithReason(fault.New(fault.Exhausted, "%s: the disk is full: %s", doing, text), "DISK_FULL")
	case has("executable file not found", "exec: \"") && has("not found", "no such file"):
		return fault.WithReason(fault.New(fault.NotFound, "%s: the command is not in the image: %s", doing, text), "COMMAND_NOT_FOUND")
	case has("exec") && has("permission denied", "is a directory", "exec format error"):
		return fault.WithReason(fault.New(fault.Invalid, "%s: the command cannot be executed: %s", doing, text), "COMMAND_NOT_EXECUTABLE")
	case has("OCI runtime create failed", "OCI runtime start failed", "OCI runtime exec failed", "runc create failed", "runc start failed"):
		return fault.WithReason(fault.New(fault.Invalid, "%s: %s", doing, text), "RUNTIME_REFUSED")
	case errdefs.IsInvalidArgument(err):
		return fault.New(fault.Invalid, "%s: %s", doing, text)
	}
	return fault.New(fault.Unavailable, "%s: %s", doing, text)
}
