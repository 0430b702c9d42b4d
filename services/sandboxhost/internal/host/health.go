package host

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/services/sandboxhost/internal/probe"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	yes     = resourcev1.ConditionState_CONDITION_STATE_TRUE
	no      = resourcev1.ConditionState_CONDITION_STATE_FALSE
	unknown = resourcev1.ConditionState_CONDITION_STATE_UNKNOWN

	// conditionReady is the condition of a sandbox that can do its work.
	conditionReady = "Ready"
)

// watching is the prober of the current attempt, if it has one.
type watching struct {
	prober *probe.Prober
	key    string // of what is watched
	stop   context.CancelFunc
}

// tend watches what is to be watched now and takes in what was found. What was
// known before holds until something newer is.
func (k *keeper) tend(ctx context.Context) {
	watched := k.watched()
	if key := k.watchKey(watched); key != k.watch.key {
		k.unwatch()
		if key != "" {
			k.startWatch(ctx, key, watched)
		}
	}
	before := k.life.unhealthy
	k.life.unhealthy = ""
	if k.watch.prober != nil {
		k.life.unhealthy = k.watch.prober.Unhealthy()
	}
	if before == "" && k.life.unhealthy != "" {
		k.retry.at = 0 // nothing else is as urgent
	}
	k.takeHealth()
}

// takeHealth puts what is known into the status. Whether the sandbox is ready is a fact,
// which an adopted one goes on with; the rest is for people.
func (k *keeper) takeHealth() {
	was := condition(k.rec.GetStatus())
	state, reason := readiness(k.rec)
	if k.watch.prober == nil && was.GetState() == state && was.GetReason() == reason {
		return
	}
	at := k.host.now()
	note := func(r *sandboxhostv1.SandboxRecord) {
		for _, cs := range r.GetStatus().GetContainers() {
			if k.watch.prober != nil && cs.GetExit() == nil {
				cs.Conditions = k.watch.prober.Conditions(cs.GetId())
			}
		}
		setReady(r, at)
	}
	next := proto.CloneOf(k.rec)
	note(next)
	if condition(next.GetStatus()).GetState() != was.GetState() && k.change(durable, note) == nil {
		return
	}
	_ = k.change(forPeople, note) // not written, cannot fail
}

// watched are the containers that run and have something to watch.
func (k *keeper) watched() []probe.Watched {
	if k.rec.GetStatus().GetPhase() != running {
		return nil
	}
	var list []probe.Watched
	for _, cs := range k.rec.GetStatus().GetContainers() {
		spec := containerSpec(k.rec, cs.GetName())
		if cs.GetPid() != 0 && cs.GetExit() == nil && probe.HasChecks(spec) {
			list = append(list, probe.Watched{ID: cs.GetId(), Spec: spec, Before: cs.GetConditions()})
		}
	}
	return list
}

// watchKey changes when something else is to be watched.
func (k *keeper) watchKey(watched []probe.Watched) string {
	var b strings.Builder
	for _, w := range watched {
		checks := &resourcev1.ContainerSpec{
			StartupProbe: w.Spec.GetStartupProbe(), LivenessProbe: w.Spec.GetLivenessProbe(),
			ReadinessProbe: w.Spec.GetReadinessProbe(), Ports: w.Spec.GetPorts(),
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(checks)
		if err != nil { // a wish that was accepted can be encoded
			continue
		}
		fmt.Fprintf(&b, "%s %x;", w.ID, raw)
	}
	return b.String()
}

// startWatch begins to watch. The prober ends with unwatch; run waits for it.
func (k *keeper) startWatch(ctx context.Context, key string, watched []probe.Watched) {
	ctx, stop := context.WithCancel(ctx)
	address := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if len(k.observed.Addresses) > 0 {
		address = k.observed.Addresses[0]
	}
	p := probe.New(probe.Config{
		UID: k.uid, Address: address, Containers: watched,
		Changed: func() {
			select {
			case k.checked <- struct{}{}:
			default: // it will look anyway
			}
		},
	}, k.host.deps.Engine)
	k.watch = watching{prober: p, key: key, stop: stop}
	k.probers.Go(func() { p.Run(ctx) }) // ends with unwatch; run waits for it
}

// unwatch ends the prober. It does not wait: a command may have to be ended first.
func (k *keeper) unwatch() {
	if k.watch.stop != nil {
		k.watch.stop()
	}
	k.watch = watching{}
}

// condition is the readiness of a sandbox, nil if nobody has said anything.
func condition(s *resourcev1.SandboxStatus) *resourcev1.Condition {
	return conditionOf(s.GetConditions(), conditionReady)
}

// conditionOf is the condition of a type, nil if nobody has said anything of it.
func conditionOf(all []*resourcev1.Condition, kind string) *resourcev1.Condition {
	for _, c := range all {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// setReady makes the condition of the sandbox of its phase and those of its containers.
func setReady(r *sandboxhostv1.SandboxRecord, at moment) {
	s := r.GetStatus()
	state, reason := readiness(r)
	since := timestamppb.New(at.Wall)
	if was := condition(s); was.GetState() == state && was.GetSince() != nil {
		since = was.GetSince()
	}
	s.Conditions = []*resourcev1.Condition{{Type: conditionReady, State: state, Reason: reason, Since: since}}
}

// readiness says whether a sandbox can do its work, and if not why.
func readiness(r *sandboxhostv1.SandboxRecord) (resourcev1.ConditionState, string) {
	s := r.GetStatus()
	if s.GetPhase() != running {
		return no, "it is " + phaseName(s.GetPhase())
	}
	for _, cs := range s.GetContainers() {
		spec := containerSpec(r, cs.GetName())
		if spec.GetInit() || cs.GetExit() != nil || !probe.HasChecks(spec) {
			continue
		}
		if len(cs.GetConditions()) == 0 {
			return unknown, "container " + cs.GetName() + ": not watched yet"
		}
		for _, c := range cs.GetConditions() {
			if c.GetType() != probe.Live && c.GetState() != yes {
				return c.GetState(), clipReason(fmt.Sprintf("container %s: %s%s", cs.GetName(), checkNames[c.GetType()], c.GetReason()))
			}
		}
	}
	return yes, ""
}

// checkNames introduce the reason of a condition of a container.
var checkNames = map[string]string{probe.Started: "startup probe: ", probe.Ready: "readiness probe: "}

// clipReason keeps a sentence within what a condition may carry.
func clipReason(text string) string {
	const most = 1024
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len("…")], "") + "…"
	}
	return text
}

// forgetHealth drops what is known of containers that are not watched any more.
func forgetHealth(s *resourcev1.SandboxStatus) {
	for _, cs := range s.GetContainers() {
		cs.Conditions = nil
	}
}
