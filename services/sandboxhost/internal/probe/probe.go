// Package probe watches whether the containers of one sandbox can do their work: it
// asks their probes and looks for their ports, and keeps the answers.
//
// What an answer means is decided by Tracker, which is pure; how a question is asked
// is in check.go and goes through the engine alone, so that it is asked inside the
// sandbox. A question that cannot be asked leaves the last answer as it was. A port that
// was seen open once is not looked for again, so that a sandbox at rest without probes
// costs nothing. It must never end, start or change anything: what follows from
// an answer is the keeper's, which owns the Prober. In the trail of a sandbox it stands
// beside internal/engine.
package probe

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Names of the conditions of a container.
const (
	Started   = "Started"   // its startup probe
	Live      = "Live"      // its liveness probe
	Ready     = "Ready"     // its readiness probe
	Listening = "Listening" // its ports
)

// Watched is one container that runs.
type Watched struct {
	// ID at the runtime.
	ID string
	// Spec says what to ask.
	Spec *resourcev1.ContainerSpec
	// Before are its conditions as they were known last in this attempt; they hold
	// until there is a newer answer. Empty for an attempt that has just begun.
	Before []*resourcev1.Condition
}

// Config is one sandbox.
type Config struct {
	// UID of the sandbox.
	UID id.Sandbox
	// Address at which its ports are asked for, inside.
	Address netip.Addr
	// Containers are those that have something to ask.
	Containers []Watched
	// Changed is called after an answer has changed. It must not block.
	Changed func()
}

// Prober watches one attempt of one sandbox.
type Prober struct {
	cfg    Config
	inside engine.Inside

	mu      sync.Mutex                     // guards what follows
	answers map[string]map[string]*Tracker // by id of the container and name
}

// HasChecks says whether a container has anything to watch.
func HasChecks(spec *resourcev1.ContainerSpec) bool {
	return spec.GetStartupProbe() != nil || spec.GetLivenessProbe() != nil || spec.GetReadinessProbe() != nil || len(spec.GetPorts()) > 0
}

// New returns a prober that asks nothing before Run.
func New(cfg Config, inside engine.Inside) *Prober {
	p := &Prober{cfg: cfg, inside: inside, answers: make(map[string]map[string]*Tracker)}
	for _, w := range cfg.Containers {
		all := make(map[string]*Tracker)
		add := func(name string, asked bool, first resourcev1.ConditionState, probe *resourcev1.Probe) {
			if asked {
				all[name] = newTracker(name, first, probe, w.Before)
			}
		}
		add(Started, w.Spec.GetStartupProbe() != nil, no, w.Spec.GetStartupProbe())
		add(Live, w.Spec.GetLivenessProbe() != nil, yes, w.Spec.GetLivenessProbe())
		add(Ready, w.Spec.GetReadinessProbe() != nil, no, w.Spec.GetReadinessProbe())
		add(Listening, len(w.Spec.GetPorts()) > 0, no, nil)
		p.answers[w.ID] = all
	}
	return p
}

// Run asks until ctx ends, and returns when no question is on its way.
func (p *Prober) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, w := range p.cfg.Containers {
		all.Go(func() { p.watch(ctx, w) }) // waited for below
	}
	all.Wait()
}

// watch asks about one container.
func (p *Prober) watch(ctx context.Context, w Watched) {
	var all sync.WaitGroup
	defer all.Wait()
	if len(w.Spec.GetPorts()) > 0 {
		all.Go(func() { p.awaitPorts(ctx, w) }) // the same
	}
	fresh := len(w.Before) == 0
	if probe := w.Spec.GetStartupProbe(); probe != nil && !p.loop(ctx, w, Started, probe, fresh) {
		return
	}
	if probe := w.Spec.GetLivenessProbe(); probe != nil {
		all.Go(func() { p.loop(ctx, w, Live, probe, fresh) }) // the same
	}
	if probe := w.Spec.GetReadinessProbe(); probe != nil {
		all.Go(func() { p.loop(ctx, w, Ready, probe, fresh) }) // the same
	}
}

// eager is how often a readiness probe that has not passed yet is asked, and ports are
// looked for, until the period of the probe or the cap is reached.
var eager = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second}

// loop asks one probe for as long as its answer matters: a startup probe until it has
// one. It returns whether the answer is yes.
func (p *Prober) loop(ctx context.Context, w Watched, name string, probe *resourcev1.Probe, fresh bool) bool {
	if name == Started && p.state(w.ID, name) == yes {
		return true
	}
	if fresh && backoff.Wait(ctx, probe.GetInitialDelay().AsDuration()) != nil {
		return false
	}
	for tries := 1; ; tries++ {
		limited, cancel := context.WithTimeout(ctx, orElse(probe.GetTimeout(), time.Second))
		outcome, why := p.ask(limited, w, name, probe)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		state := p.see(w.ID, name, outcome, why)
		if name == Started && (state == yes || p.final(w.ID, name)) {
			return state == yes
		}
		wait := orElse(probe.GetPeriod(), 10*time.Second)
		if name == Ready && state != yes {
			wait = min(wait, max(eager.Delay(tries, 0), eager.Initial))
		}
		if backoff.Wait(ctx, wait) != nil {
			return false
		}
	}
}

// awaitPorts looks for the ports of a container until all of them are open.
func (p *Prober) awaitPorts(ctx context.Context, w Watched) {
	for tries := 1; p.state(w.ID, Listening) != yes; tries++ {
		listeners, err := p.inside.Listeners(ctx, p.cfg.UID)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.see(w.ID, Listening, Unknown, "")
		} else if why := Explain(w.Spec.GetPorts(), listeners); why != "" {
			p.see(w.ID, Listening, Fail, why)
		} else {
			p.see(w.ID, Listening, Pass, "")
		}
		if backoff.Wait(ctx, eager.Delay(tries, 0)) != nil {
			return
		}
	}
}

// see takes an answer in and tells if anything has changed.
func (p *Prober) see(containerID, name string, outcome Outcome, why string) resourcev1.ConditionState {
	p.mu.Lock()
	t := p.answers[containerID][name]
	changed := t.See(outcome, why, time.Now())
	state := t.State
	p.mu.Unlock()
	if changed {
		p.cfg.Changed()
	}
	return state
}

func (p *Prober) state(containerID, name string) resourcev1.ConditionState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers[containerID][name].State
}

func (p *Prober) final(containerID, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers[containerID][name].Exhausted
}

// Conditions are the answers about one container as they are known now, in a fixed
// order.
func (p *Prober) Conditions(containerID string) []*resourcev1.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*resourcev1.Condition
	for _, name := range []string{Started, Live, Ready, Listening} {
		if t := p.answers[containerID][name]; t != nil {
			list = append(list, t.Condition(name))
		}
	}
	return list
}

// Unhealthy says in one sentence which container cannot go on, if one cannot: its
// startup or liveness probe says no. What is wrong with its ports is added, for it is the
// likely cause.
func (p *Prober) Unhealthy() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.cfg.Containers {
		for _, name := range []string{Started, Live} {
			if t := p.answers[w.ID][name]; t != nil && t.Exhausted {
				return "container " + w.Spec.GetName() + ": " + probeNames[name] + " probe: " + t.Reason + p.portsLocked(w.ID)
			}
		}
	}
	return ""
}

// portsLocked is what is known to be wrong with the ports of a container.
func (p *Prober) portsLocked(containerID string) string {
	t := p.answers[containerID][Listening]
	if t == nil || t.State == yes || t.Reason == unasked {
		return ""
	}
	return "; " + t.Reason
}

// probeNames are the probes behind conditions.
var probeNames = map[string]string{Started: "startup", Live: "liveness", Ready: "readiness"}
