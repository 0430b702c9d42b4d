package host

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// noteFormat is the version of engine notes that this release reads.
const noteFormat = 1

// unreadable says that a container was noted by a release that we do not know.
// It is left alone.
func unreadable(c engine.Container) bool { return c.Note.GetFormat() != noteFormat }

// exitToNote finds a container that has ended and whose exit is not written
// down. One that was started and is not there any more has ended in a way that
// nobody knows.
func (in Input) exitToNote() (engine.Container, bool) {
	for _, c := range in.Observed.Containers {
		if c.State == engine.Exited && !in.Noted[c.ID] && !noted(in.Record, c.Note.GetContainer(), c.Note.GetAttempt()) {
			return c, true
		}
	}
	for _, s := range in.Record.GetStatus().GetContainers() {
		init := in.wished(s.GetName()).GetInit()
		started := s.GetStartedAt() != nil || in.Record.GetStatus().GetPhase() == running && !init
		if !started || s.GetExit() != nil || init && in.initOver() {
			continue
		}
		if c, _ := in.observed(s.GetName()); c.State != engine.Running && c.State != engine.Exited {
			return lost(in.Record, s), true
		}
	}
	return engine.Container{}, false
}

// lost describes a container of which nothing is left to observe.
func lost(r *sandboxhostv1.SandboxRecord, s *resourcev1.ContainerStatus) engine.Container {
	return engine.Container{
		ID:    s.GetId(),
		State: engine.Exited,
		Note: &sandboxhostv1.ContainerNote{
			Format: noteFormat, Container: s.GetName(), Attempt: r.GetStatus().GetAttempt(),
		},
		Exit: &engine.Exit{Unknown: true},
	}
}

// observed finds a container of the current attempt by its name.
func (in Input) observed(name string) (engine.Container, bool) {
	for _, c := range in.Observed.Containers {
		if c.Note.GetContainer() == name && c.Note.GetAttempt() == in.Record.GetStatus().GetAttempt() {
			return c, true
		}
	}
	return engine.Container{}, false
}

// firstMissing finds the first container that was not started in this attempt, or
// is an init container that has not ended, and what there is of it.
func (in Input) firstMissing() (name string, c engine.Container, missing bool) {
	attempt := in.Record.GetStatus().GetAttempt()
	over := in.initOver()
	for _, spec := range startOrder(in.Record.GetWish().GetSpec().GetContainers()) {
		if noted(in.Record, spec.GetName(), attempt) || spec.GetInit() && over {
			continue
		}
		c, _ := in.observed(spec.GetName())
		if c.State != engine.Running || spec.GetInit() {
			return spec.GetName(), c, true
		}
	}
	return "", engine.Container{}, false
}

// initOver says that the init containers of this attempt have done their work,
// whether or not that is written down: another container was started after them.
func (in Input) initOver() bool {
	for _, spec := range in.Record.GetWish().GetSpec().GetContainers() {
		c, _ := in.observed(spec.GetName())
		if !spec.GetInit() && (c.State == engine.Running || c.State == engine.Exited ||
			noted(in.Record, spec.GetName(), in.Record.GetStatus().GetAttempt())) {
			return true
		}
	}
	return false
}

// startOrder is the order in which containers are started: as in the spec, but
// init containers first.
func startOrder(containers []*resourcev1.ContainerSpec) []*resourcev1.ContainerSpec {
	return slices.SortedStableFunc(slices.Values(containers), func(a, b *resourcev1.ContainerSpec) int {
		switch {
		case a.GetInit() == b.GetInit():
			return 0
		case a.GetInit():
			return -1
		}
		return 1
	})
}

// wished is what the wish says about a container, nil if it does not name it.
func (in Input) wished(name string) *resourcev1.ContainerSpec {
	return containerSpec(in.Record, name)
}

func containerSpec(r *sandboxhostv1.SandboxRecord, name string) *resourcev1.ContainerSpec {
	for _, spec := range r.GetWish().GetSpec().GetContainers() {
		if spec.GetName() == name {
			return spec
		}
	}
	return nil
}

// sameLimits compares limits, of which nil and empty are the same.
func sameLimits(a, b *resourcev1.ResourceLimits) bool {
	if a == nil {
		a = &resourcev1.ResourceLimits{}
	}
	if b == nil {
		b = &resourcev1.ResourceLimits{}
	}
	return proto.Equal(a, b)
}

// ofOtherAttempts returns containers that do not belong to the current attempt:
// they are there when the journal was lost, and must be gone before anything else
// is done.
func (in Input) ofOtherAttempts() []engine.Container {
	var foreign []engine.Container
	for _, c := range in.Observed.Containers {
		if c.Note.GetAttempt() != in.Record.GetStatus().GetAttempt() {
			foreign = append(foreign, c)
		}
	}
	return foreign
}

// inReverse orders containers as they are stopped: the last of the spec first,
// those that the spec does not name before all.
func (in Input) inReverse(containers []engine.Container) []engine.Container {
	order := startOrder(in.Record.GetWish().GetSpec().GetContainers())
	place := func(c engine.Container) int {
		i := slices.IndexFunc(order, func(s *resourcev1.ContainerSpec) bool { return s.GetName() == c.Note.GetContainer() })
		if i < 0 {
			return len(order)
		}
		return i
	}
	return slices.SortedStableFunc(slices.Values(containers), func(a, b engine.Container) int {
		return cmp.Compare(place(b), place(a))
	})
}

// noted says whether the exit of a container is written down.
func noted(r *sandboxhostv1.SandboxRecord, container string, attempt uint64) bool {
	if attempt == r.GetStatus().GetAttempt() {
		for _, s := range r.GetStatus().GetContainers() {
			if s.GetName() == container {
				return s.GetExit() != nil
			}
		}
	}
	return slices.ContainsFunc(r.GetStatus().GetExits(), func(e *resourcev1.ContainerExit) bool {
		return e.GetContainer() == container && e.GetAttempt() == attempt
	})
}

// policy is the restart policy with its default.
func policy(r *sandboxhostv1.SandboxRecord) resourcev1.RestartPolicy {
	if p := r.GetWish().GetSpec().GetRestartPolicy(); p != resourcev1.RestartPolicy_RESTART_POLICY_UNSPECIFIED {
		return p
	}
	return resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS
}

// restarts says whether an exit of the current attempt asks for another one. An
// init container that ended well has done its work.
func restarts(r *sandboxhostv1.SandboxRecord) bool {
	switch policy(r) {
	case resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS:
		return anyExit(r, func(e *resourcev1.ContainerExit) bool {
			return badExit(e) || !containerSpec(r, e.GetContainer()).GetInit()
		})
	case resourcev1.RestartPolicy_RESTART_POLICY_ON_FAILURE:
		return anyFailed(r)
	}
	return false
}

func anyFailed(r *sandboxhostv1.SandboxRecord) bool {
	return anyExit(r, badExit)
}

// initFailed says that an init container of the current attempt did not end with
// code 0, so that nothing else can be started.
func initFailed(r *sandboxhostv1.SandboxRecord) bool {
	return anyExit(r, func(e *resourcev1.ContainerExit) bool {
		return badExit(e) && containerSpec(r, e.GetContainer()).GetInit()
	})
}

func badExit(e *resourcev1.ContainerExit) bool {
	return e.GetUnknown() || e.GetCode() != 0 || e.GetSignal() != 0
}

func anyExit(r *sandboxhostv1.SandboxRecord, is func(*resourcev1.ContainerExit) bool) bool {
	return slices.ContainsFunc(r.GetStatus().GetContainers(), func(s *resourcev1.ContainerStatus) bool {
		return s.GetExit() != nil && is(s.GetExit())
	})
}

func anyStarted(r *sandboxhostv1.SandboxRecord) bool {
	return slices.ContainsFunc(r.GetStatus().GetContainers(), func(s *resourcev1.ContainerStatus) bool {
		return s.GetStartedAt() != nil || s.GetExit() != nil
	})
}

func allEnded(r *sandboxhostv1.SandboxRecord) bool {
	containers := r.GetStatus().GetContainers()
	return len(containers) > 0 && !slices.ContainsFunc(containers, func(s *resourcev1.ContainerStatus) bool {
		return s.GetExit() == nil
	})
}

func hostNetwork(r *sandboxhostv1.SandboxRecord) bool {
	return r.GetWish().GetSpec().GetNetwork() == resourcev1.NetworkMode_NETWORK_MODE_HOST
}
