package rpc

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// selfSource is the source of what a process says of itself.
const selfSource = "self"

// block is one cause for not being ready.
type block struct {
	reason     string
	waitingFor []string
	external   bool
	since      time.Time // zero: the text does not say for how long
}

func (b block) text(now time.Time) string {
	if b.since.IsZero() {
		return b.reason
	}
	return fmt.Sprintf("%s for %s", b.reason, now.Sub(b.since).Truncate(time.Second))
}

// Status is the state of a process: the one source for gRPC health, GetStatus and
// the reason in a refusal. A process is ready when nothing blocks it. Safe for
// concurrent use.
type Status struct {
	processv1.UnimplementedProcessServiceServer

	process, version string
	startedAt        time.Time
	health           *health.Server

	mu       sync.Mutex // guards all below
	names    []string   // health names that follow readiness
	blocks   map[string]block
	state    processv1.ProcessState
	since    time.Time
	wasReady bool
	stopping bool
	changed  chan struct{} // closed and replaced at each change
}

// NewStatus returns the status of a process that is starting.
func NewStatus(process, version string) *Status {
	now := time.Now()
	s := &Status{
		process: process, version: version, startedAt: now, since: now,
		health: health.NewServer(), names: []string{""},
		blocks:  map[string]block{selfSource: {reason: "starting"}},
		state:   processv1.ProcessState_PROCESS_STATE_STARTING,
		changed: make(chan struct{}),
	}
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	return s
}

// SetReady says that the process itself is able to do its job. It is ready as a
// whole when no neighbour blocks it either.
func (s *Status) SetReady() { s.Unblock(selfSource) }

// SetNotReady says in one sentence why the process cannot do its job, and for
// which neighbours it waits.
func (s *Status) SetNotReady(reason string, waitingFor ...string) {
	s.set(selfSource, block{reason: reason, waitingFor: waitingFor})
}

// SetExternal is SetNotReady with a cause outside this machine: a start time-out
// does not count meanwhile.
func (s *Status) SetExternal(reason string, waitingFor ...string) {
	s.set(selfSource, block{reason: reason, waitingFor: waitingFor, external: true})
}

// Block adds or replaces one cause for not being ready, by its source; causes of
// other sources stay. Sources are names of parts, such as "dns".
func (s *Status) Block(source, reason string, waitingFor ...string) {
	s.set(source, block{reason: reason, waitingFor: waitingFor})
}

// Unblock removes the cause of a source.
func (s *Status) Unblock(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.blocks[source]; ok {
		delete(s.blocks, source)
		s.changeLocked()
	}
}

func (s *Status) set(source string, b block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.blocks[source]
	if ok && old.reason == b.reason && old.external == b.external && slices.Equal(old.waitingFor, b.waitingFor) {
		return
	}
	s.blocks[source] = b
	s.changeLocked()
}

// Stopping says that the process was asked to end. Nothing changes it back.
func (s *Status) Stopping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.stopping = true
		s.changeLocked()
	}
}

// SetHealth sets a health name that does not follow readiness, such as "link".
func (s *Status) SetHealth(name string, serving bool) {
	s.health.SetServingStatus(name, servingStatus(serving))
}

func servingStatus(serving bool) healthv1.HealthCheckResponse_ServingStatus {
	if serving {
		return healthv1.HealthCheckResponse_SERVING
	}
	return healthv1.HealthCheckResponse_NOT_SERVING
}

// follow adds health names that say what readiness says.
func (s *Status) follow(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		if !slices.Contains(s.names, n) {
			s.names = append(s.names, n)
		}
	}
	s.changeLocked()
}

// changeLocked derives state and health anew and wakes whoever watches.
func (s *Status) changeLocked() {
	state := s.deriveLocked()
	if state != s.state {
		s.state, s.since = state, time.Now()
	}
	ready := state == processv1.ProcessState_PROCESS_STATE_READY
	s.wasReady = s.wasReady || ready
	for _, n := range s.names {
		s.health.SetServingStatus(n, servingStatus(ready))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Status) deriveLocked() processv1.ProcessState {
	switch {
	case s.stopping:
		return processv1.ProcessState_PROCESS_STATE_STOPPING
	case len(s.blocks) == 0:
		return processv1.ProcessState_PROCESS_STATE_READY
	case s.wasReady:
		return processv1.ProcessState_PROCESS_STATE_NOT_READY
	}
	return processv1.ProcessState_PROCESS_STATE_STARTING
}

// Ready reports whether the process is ready now.
func (s *Status) Ready() bool {
	return s.Get().GetState() == processv1.ProcessState_PROCESS_STATE_READY
}

// started reports whether the process was ever ready, and the reason if not.
func (s *Status) started() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wasReady {
		return true, ""
	}
	reason, _, _ := s.reasonLocked()
	return false, reason
}

// Get returns the status now.
func (s *Status) Get() *processv1.GetStatusResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, waitingFor, external := s.reasonLocked()
	return &processv1.GetStatusResponse{
		Goroutines: int32(runtime.NumGoroutine()),
		Process:    s.process, Version: s.version, State: s.state, Since: timestamppb.New(s.since),
		Reason: reason, WaitingFor: waitingFor, External: external,
		Pid: int32(os.Getpid()), StartedAt: timestamppb.New(s.startedAt),
	}
}

// reasonLocked joins the causes. "starting" is dropped where something better is
// known; external holds only if every cause is.
func (s *Status) reasonLocked() (reason string, waitingFor []string, external bool) {
	if s.stopping {
		return "stopping", nil, false
	}
	causes := maps.Clone(s.blocks)
	if own, ok := causes[selfSource]; ok && own.reason == "starting" && len(causes) > 1 {
		delete(causes, selfSource)
	}
	var texts []string
	external = len(causes) > 0
	now := time.Now()
	for _, source := range slices.Sorted(maps.Keys(causes)) {
		b := causes[source]
		texts = append(texts, b.text(now))
		waitingFor = append(waitingFor, b.waitingFor...)
		external = external && b.external
	}
	slices.Sort(waitingFor)
	return strings.Join(texts, "; "), slices.Compact(waitingFor), external
}

// Changed returns a channel that is closed at the next change. Take it before
// Get, so that no change falls between the two.
func (s *Status) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// GetStatus serves Get.
func (s *Status) GetStatus(context.Context, *processv1.GetStatusRequest) (*processv1.GetStatusResponse, error) {
	return s.Get(), nil
}
