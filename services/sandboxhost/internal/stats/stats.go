// Package stats reads what the node and its sandboxes use, for whoever asks.
//
// It owns the open files of the control groups that it reads: one goroutine opens them at
// the first question, keeps them while somebody asks, and closes them a while after the
// last. Nothing is read at rest. What cannot be read is left out, and never makes
// another's figures fail or wait. It must never ask the runtime, change a group, or keep
// a group or a network from being removed. In the trail it stands beside the keepers.
package stats

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/cgroup"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// idleTime is for how long files are kept open after the last question: longer than
	// people and collectors usually wait between two.
	idleTime = time.Minute
	// maxKept bounds how many groups are kept open, with up to ten files each: the rest is
	// opened anew for each reading, which costs more time and no files.
	maxKept = 400
)

// Engine is where usage is read; a *containerd.Engine.
type Engine interface {
	// Meter opens the group of all workloads, or below it that of a sandbox or container.
	// It returns cgroup.ErrGone where there is none.
	Meter(names ...string) (*cgroup.Meter, error)
	// Traffic counts what went through the network of a sandbox. It returns
	// fault.NotFound for one without a network of its own.
	Traffic(uid id.Sandbox) (*sandboxhostv1.NetworkUsage, error)
}

// Deps are what a Collector works with.
type Deps struct {
	Engine Engine
	// Sandboxes are all of this node, or fault.Unavailable while that is not known.
	Sandboxes func() (map[id.Sandbox]*sandboxhostv1.SandboxState, error)
	// Machine reads what the whole machine uses.
	Machine func() *sandboxhostv1.Usage
	// CPUs is how many processors the machine has.
	CPUs int
	// Log gets what could not be read.
	Log *slog.Logger
}

// Round is what was read at once, ordered by uid.
type Round struct {
	Node      *sandboxhostv1.NodeStats
	Sandboxes []*sandboxhostv1.SandboxStats
}

// Collector answers questions. Any goroutine may ask.
type Collector struct {
	deps Deps
	asks chan question
	kept map[key]*cgroup.Meter // of the goroutine that runs
}

// key is one group in one attempt: the next has another group by the same name.
type key struct {
	uid       id.Sandbox
	container string
	attempt   uint64
}

type question struct {
	uid    id.Sandbox // "" for all
	answer chan<- answer
}

type answer struct {
	round Round
	err   error
}

// New returns one that opens nothing before Run.
func New(deps Deps) *Collector {
	return &Collector{deps: deps, asks: make(chan question), kept: map[key]*cgroup.Meter{}}
}

// Ask reads what one sandbox uses, or with an empty uid all of them. It returns
// fault.NotFound if there is no such sandbox, and fault.Unavailable while the host is not
// ready.
func (c *Collector) Ask(ctx context.Context, uid id.Sandbox) (Round, error) {
	got := make(chan answer, 1) // nobody may wait for it any more
	select {
	case c.asks <- question{uid, got}:
	case <-ctx.Done():
		return Round{}, context.Cause(ctx)
	}
	select {
	case a := <-got:
		return a.round, a.err
	case <-ctx.Done():
		return Round{}, context.Cause(ctx)
	}
}

// Run answers until ctx ends.
func (c *Collector) Run(ctx context.Context, ready func()) error {
	ready()
	defer c.keep(nil)
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-idle.C:
			c.keep(nil)
		case q := <-c.asks:
			round, err := c.round(q.uid)
			q.answer <- answer{round, err}
			idle.Reset(idleTime)
		}
	}
}

// keep closes all groups but these.
func (c *Collector) keep(these map[key]bool) {
	for k := range c.kept {
		if !these[k] {
			c.drop(k)
		}
	}
}

func (c *Collector) drop(k key) {
	if m := c.kept[k]; m != nil {
		c.close(m)
	}
	delete(c.kept, k)
}

func (c *Collector) close(m *cgroup.Meter) {
	if err := m.Close(); err != nil {
		c.deps.Log.Warn("files of control group not closed", logging.Err(err))
	}
}

func (c *Collector) round(only id.Sandbox) (Round, error) {
	states, err := c.deps.Sandboxes()
	if err != nil {
		return Round{}, err
	}
	if only != "" && states[only] == nil {
		return Round{}, fault.New(fault.NotFound, "sandbox %s: is not on this node", only)
	}
	all := key{}
	live := map[key]bool{all: true}
	round := Round{Node: &sandboxhostv1.NodeStats{Machine: c.deps.Machine(), Workloads: c.usage(all), Cpus: int32(c.deps.CPUs)}} //nolint:gosec // a few
	for _, uid := range slices.Sorted(maps.Keys(states)) {
		running := runningIn(states[uid])
		if len(running) == 0 {
			continue
		}
		own := key{uid: uid, attempt: states[uid].GetStatus().GetAttempt()}
		live[own] = true
		for _, r := range running {
			live[own.of(r)] = true
		}
		if only == "" || only == uid {
			round.Sandboxes = append(round.Sandboxes, c.sandbox(own, states[uid], running))
		}
	}
	c.keep(live)
	return round, nil
}

func (k key) of(r *resourcev1.ContainerStatus) key {
	k.container = r.GetName()
	return k
}

// runningIn are the containers of a sandbox whose process lives, as far as is known.
func runningIn(state *sandboxhostv1.SandboxState) []*resourcev1.ContainerStatus {
	var running []*resourcev1.ContainerStatus
	for _, s := range state.GetStatus().GetContainers() {
		if s.GetPid() != 0 && s.GetExit() == nil {
			running = append(running, s)
		}
	}
	return running
}

func (c *Collector) sandbox(own key, state *sandboxhostv1.SandboxState, running []*resourcev1.ContainerStatus) *sandboxhostv1.SandboxStats {
	s := &sandboxhostv1.SandboxStats{Uid: string(own.uid), Name: state.GetName(), Attempt: own.attempt, Usage: c.usage(own)}
	var kills *uint64
	for _, r := range running {
		one := &sandboxhostv1.ContainerStats{Name: r.GetName(), Id: r.GetId(), Usage: c.usage(own.of(r))}
		s.Containers = append(s.Containers, one)
		if one.GetUsage() != nil && one.GetUsage().OomKills != nil {
			if kills == nil {
				kills = new(uint64)
			}
			*kills += one.GetUsage().GetOomKills()
		}
	}
	if s.GetUsage() != nil {
		s.Usage.OomKills = kills // one kernel counts them in the group itself, another below it
	}
	if state.GetSpec().GetNetwork() != resourcev1.NetworkMode_NETWORK_MODE_HOST {
		traffic, err := c.deps.Engine.Traffic(own.uid)
		if err != nil && !errors.Is(err, fault.NotFound) {
			c.deps.Log.Debug("traffic not read", own.uid.Attr(), logging.Err(err))
		}
		s.Network = traffic
	}
	return s
}

// usage reads one group; nil where it cannot be.
func (c *Collector) usage(k key) *sandboxhostv1.Usage {
	m := c.kept[k]
	if m == nil {
		var err error
		if m, err = c.deps.Engine.Meter(k.names()...); err != nil {
			if !errors.Is(err, cgroup.ErrGone) {
				c.deps.Log.Debug("control group not read", k.uid.Attr(), logging.Err(err))
			}
			return nil
		}
		if len(c.kept) < maxKept {
			c.kept[k] = m
		} else {
			defer c.close(m)
		}
	}
	r, err := m.Read()
	if err != nil {
		c.drop(k)
		return nil
	}
	return &sandboxhostv1.Usage{
		ReadAt: timestamppb.Now(), ReadSinceBoot: durationpb.New(r.At), CpuUsageNanoseconds: r.CPU,
		MemoryWorkingSetBytes: r.WorkingSet, MemoryUsageBytes: r.Memory, MemoryLimitBytes: r.MemoryLimit,
		Pids: r.PIDs, IoReadBytes: r.IORead, IoWrittenBytes: r.IOWritten, OomKills: r.OOMKills,
	}
}

func (k key) names() []string {
	switch {
	case k.uid == "":
		return nil
	case k.container == "":
		return []string{k.uid.Lower()}
	}
	return []string{k.uid.Lower(), k.container}
}
