package api

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/logs"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// present finds the sandbox that a request is about among those that are here.
func (s *Server) present(req *sandboxhostv1.ReadLogsRequest) (*sandboxhostv1.SandboxState, error) {
	if req.GetUid() != "" {
		return s.host.Get(id.Sandbox(req.GetUid()))
	}
	states, err := s.host.List()
	if err != nil {
		return nil, err
	}
	var found *sandboxhostv1.SandboxState
	for _, state := range states {
		if state.GetName() != req.GetName() {
			continue
		}
		if found != nil {
			return nil, fault.New(fault.Invalid, "read logs of sandbox %s: two have that name, %s and %s: name one by its uid", req.GetName(), found.GetUid(), state.GetUid())
		}
		found = state
	}
	if found == nil {
		return nil, fault.New(fault.NotFound, "sandbox %s: the host holds nothing of that name", req.GetName())
	}
	return found, nil
}

// readRemoved reads what a sandbox wrote that is not here any more, if that is still kept;
// else it answers with unknown. Nothing more will come of it: there is nothing to follow.
func (s *Server) readRemoved(
	req *sandboxhostv1.ReadLogsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.ReadLogsResponse], unknown error,
) error {
	all, err := s.logs.Removed()
	if err != nil {
		return err
	}
	slices.Reverse(all) // the last one of a name
	i := slices.IndexFunc(all, func(r logs.Removed) bool {
		return string(r.UID) == req.GetUid() || req.GetName() != "" && r.Name.Name == req.GetName()
	})
	if i < 0 {
		return unknown
	}
	uid := all[i].UID
	names, err := s.logs.Containers(uid)
	if err != nil {
		return err
	}
	container, err := chooseRemoved(uid, names, req.GetContainer())
	if err != nil {
		return err
	}
	kept, err := s.logs.Attempts(uid, container)
	if err != nil {
		return err
	}
	at := positionOf(req, uid, container)
	if at.Attempt, err = chooseAttempt(kept, req); err != nil {
		return fmt.Errorf("sandbox %s was removed: container %s: %w", uid, container, err)
	}
	mode := modeOf(req)
	mode.Follow = false
	return s.logs.Read(stream.Context(), at, mode, sender(stream, at))
}

// chooseRemoved is the container of that name, or the only one if none is named. Which
// ones were init containers is not known any more.
func chooseRemoved(uid id.Sandbox, names []string, name string) (string, error) {
	switch {
	case slices.Contains(names, name):
		return name, nil
	case name == "" && len(names) == 1:
		return names[0], nil
	case name == "" && len(names) > 1:
		return "", fault.New(fault.Invalid, "sandbox %s was removed, and output of several containers is kept: name one of %s", uid, strings.Join(names, ", "))
	}
	return "", fault.New(fault.NotFound, "sandbox %s was removed, and of container %q nothing is kept: it is of %s", uid, name, strings.Join(names, ", "))
}

// chooseAttempt is the attempt that a request is about, of those that are kept, ascending.
func chooseAttempt(kept []uint64, req *sandboxhostv1.ReadLogsRequest) (uint64, error) {
	back := 1
	if req.GetPrevious() {
		back = 2
	}
	switch wanted := req.GetAttempt(); {
	case wanted != 0 && slices.Contains(kept, wanted):
		return wanted, nil
	case wanted != 0:
		return 0, fault.New(fault.NotFound, "nothing is kept of attempt %d, but of %v", wanted, kept)
	case len(kept) < back:
		return 0, fault.New(fault.NotFound, "nothing is kept of an attempt before the last")
	}
	return kept[len(kept)-back], nil
}
