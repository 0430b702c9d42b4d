package host

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/engine"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// keptExits is how many exits a status keeps.
const keptExits = 10

// defaultGrace is the time between stop signal and kill when the spec states none.
const defaultGrace = 10 * time.Second

// moment is one point in time on both clocks of the node: Wall for people, Boot
// for reckoning.
type moment struct {
	Wall time.Time
	Boot time.Duration
}

func (m moment) boot() *durationpb.Duration { return durationpb.New(m.Boot) }

// newRecord is the record of a wish that was just accepted.
func newRecord(wish *sandboxhostv1.Wish, hash, boot string, at moment) *sandboxhostv1.SandboxRecord {
	wish = proto.CloneOf(wish)
	wish.AcceptedAt = timestamppb.New(at.Wall)
	r := &sandboxhostv1.SandboxRecord{Wish: wish, BootId: boot, Status: &resourcev1.SandboxStatus{}}
	r.Status.ObservedGeneration = wish.GetGeneration()
	startAttempt(r, 1, hash, at)
	return r
}

// startAttempt makes attempt n the current one.
func startAttempt(r *sandboxhostv1.SandboxRecord, n uint64, hash string, at moment) {
	var digests map[string]string
	if r.GetAttemptSpecHash() == hash { // it goes on with what it was started with
		digests = imagesOf(r.GetStatus())
	}
	r.AttemptSpecHash = hash
	r.End = endNone
	r.StopSentBoottime, r.RunningSinceBoottime, r.NextAtBoottime, r.Stops, r.StopSignals = nil, nil, nil, nil, nil
	s := r.GetStatus()
	s.Attempt, s.NextAt, s.PhaseTimes, s.Reason = n, nil, nil, ""
	tell(s, told{})
	s.Containers = nil
	for _, c := range r.GetWish().GetSpec().GetContainers() {
		s.Containers = append(s.Containers, &resourcev1.ContainerStatus{Name: c.GetName(), ImageDigest: digests[c.GetName()]})
	}
	enterPhase(s, pending, at)
	setReady(r, at)
}

// imagesOf are the digests of the images of the containers, by their names.
func imagesOf(s *resourcev1.SandboxStatus) map[string]string {
	digests := map[string]string{}
	for _, c := range s.GetContainers() {
		if c.GetImageDigest() != "" {
			digests[c.GetName()] = c.GetImageDigest()
		}
	}
	return digests
}

// noteImages notes what the containers of the current attempt are made of.
func noteImages(r *sandboxhostv1.SandboxRecord, digests map[string]string) {
	for _, c := range r.GetStatus().GetContainers() {
		if d := digests[c.GetName()]; d != "" {
			c.ImageDigest = d
		}
	}
}

func enterPhase(s *resourcev1.SandboxStatus, phase resourcev1.SandboxPhase, at moment) {
	s.Phase, s.PhaseAt = phase, timestamppb.New(at.Wall)
	s.PhaseTimes = append(s.PhaseTimes, &resourcev1.PhaseTime{Phase: phase, EnteredAt: s.PhaseAt})
}

// judge says whether a wish may take the place of the one in the record, and
// whether it differs from it.
func judge(r *sandboxhostv1.SandboxRecord, wish *sandboxhostv1.Wish) (changed bool, err error) {
	old := r.GetWish()
	switch {
	case r.GetStatus().GetTornDownAt() != nil:
		return false, conflict("TOMBSTONE", "sandbox %s: was removed, its uid is not used again", wish.GetUid())
	case r.GetRemoving():
		return false, conflict("BEING_REMOVED", "sandbox %s: is being removed", wish.GetUid())
	case wish.GetManager() != old.GetManager():
		return false, notYours(wish.GetUid(), old.GetManager())
	case wish.GetName() != old.GetName():
		return false, conflict("SPEC_CHANGED", "sandbox %s: is called %s, a name is not changed", wish.GetUid(), old.GetName())
	case wish.GetGeneration() < old.GetGeneration():
		return false, conflict("STALE_GENERATION", "sandbox %s: generation %d is here already, %d came late",
			wish.GetUid(), old.GetGeneration(), wish.GetGeneration())
	case wish.GetGeneration() > old.GetGeneration():
		return true, nil
	case !proto.Equal(wish.GetSpec(), old.GetSpec()):
		return false, conflict("SPEC_CHANGED", "sandbox %s: generation %d is here with another spec, count the generation up",
			wish.GetUid(), wish.GetGeneration())
	}
	return false, nil
}

func conflict(reason, format string, args ...any) error {
	return fault.WithReason(fault.New(fault.Conflict, format, args...), reason)
}

func notYours(uid, manager string) error {
	remedy := "change it there with staddle"
	if manager == "local" {
		remedy = "use staddle --node-socket on the node"
	}
	return fault.WithReason(fault.New(fault.Denied,
		"sandbox %s: belongs to manager %q, %s", uid, manager, remedy), "MANAGER_MISMATCH")
}

// locate keeps the newest position and labels that came with the wish.
func locate(r *sandboxhostv1.SandboxRecord, wish *sandboxhostv1.Wish) {
	if !maps.Equal(wish.GetLabels(), r.GetWish().GetLabels()) {
		r.Wish = proto.CloneOf(r.GetWish())
		r.Wish.Labels = wish.GetLabels()
	}
	if at := wish.GetPosition(); at != nil && !proto.Equal(at, r.GetWish().GetPosition()) {
		r.Wish = proto.CloneOf(r.GetWish())
		r.Wish.Position = at
	}
}

// accept puts a newer wish into the record. An attempt that has not begun yet
// is for the new spec from then on and need not wait; one that has is so if all that
// differs can be changed in place.
func accept(r *sandboxhostv1.SandboxRecord, wish *sandboxhostv1.Wish, hash string, at moment) {
	old := r.GetWish()
	r.Wish = proto.CloneOf(wish)
	r.Wish.AcceptedAt, r.Wish.Position = old.GetAcceptedAt(), old.GetPosition()
	locate(r, wish)
	s := r.GetStatus()
	s.ObservedGeneration = wish.GetGeneration()
	switch {
	case s.GetPhase() == pending && r.GetAttemptSpecHash() != hash:
		r.Failures = 0
		times := s.GetPhaseTimes()
		startAttempt(r, s.GetAttempt(), hash, at)
		s.PhaseTimes = times
	case s.GetPhase() <= running && isFor(r, old) && engine.SameContainers(old.GetSpec(), wish.GetSpec()):
		r.AttemptSpecHash = hash
	}
	if wish.GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		asked(r)
	}
}

// isFor says whether the current attempt is made for a wish, and not for another
// one that is to be replaced.
func isFor(r *sandboxhostv1.SandboxRecord, wish *sandboxhostv1.Wish) bool {
	hash, err := engine.SpecHash(wish.GetSpec())
	return err == nil && hash == r.GetAttemptSpecHash()
}

// remove notes that the wish has ended.
func remove(r *sandboxhostv1.SandboxRecord) {
	r.Removing = true
	asked(r)
}

// asked notes that an attempt that ends anyway is now asked to.
func asked(r *sandboxhostv1.SandboxRecord) {
	if r.GetEnd() != endNone {
		r.End = endAsked
	}
}

// enter goes on to another phase of the same attempt.
func enter(r *sandboxhostv1.SandboxRecord, d Decision, why told, at moment) {
	s := r.GetStatus()
	enterPhase(s, d.Phase, at)
	s.Reason, s.NextAt = d.Reason, nil
	tell(s, why)
	switch d.Phase {
	case running:
		r.RunningSinceBoottime = durationpb.New(at.Boot)
		s.ObservedGeneration = r.GetWish().GetGeneration()
	case stopping:
		forgetHealth(s)
		r.End = d.End
		r.StopSentBoottime = durationpb.New(at.Boot)
		r.NextAtBoottime = nil
	case stopped, failed:
		r.StopSentBoottime, r.RunningSinceBoottime, r.Stops = nil, nil, nil
		s.Addresses = nil
	}
	setReady(r, at)
}

// noteExit writes down how a container ended.
func noteExit(r *sandboxhostv1.SandboxRecord, c engine.Container, at moment) {
	e := &resourcev1.ContainerExit{
		Container: c.Note.GetContainer(),
		Attempt:   c.Note.GetAttempt(),
		Unknown:   c.Exit.Unknown,
		OomKilled: c.Exit.OOMKilled,
		OomKills:  c.Exit.OOMKills,
		ExitedAt:  timestamppb.New(c.Exit.At),
	}
	if c.Exit.At.IsZero() {
		e.ExitedAt = timestamppb.New(at.Wall)
	}
	if !e.GetUnknown() {
		e.Code = c.Exit.Code
		if e.GetCode() > 128 && e.GetCode() <= 128+64 {
			e.Signal = e.GetCode() - 128
		}
	}
	s := r.GetStatus()
	if !noted(r, e.GetContainer(), e.GetAttempt()) {
		s.Exits = append(s.Exits, e)
	}
	if extra := len(s.Exits) - keptExits; extra > 0 {
		s.Exits = s.Exits[extra:]
	}
	for _, cs := range s.GetContainers() {
		if cs.GetName() == e.GetContainer() && e.GetAttempt() == s.GetAttempt() {
			cs.Exit, cs.Pid, cs.Limits, cs.Conditions = e, 0, nil, nil
			cs.OomKills = max(cs.GetOomKills(), e.GetOomKills())
		}
	}
}

// begin goes on to the next attempt, which waits for wait.
func begin(r *sandboxhostv1.SandboxRecord, hash string, failures uint32, wait time.Duration, at moment) {
	s := r.GetStatus()
	why := told{message: describeExits(s)}
	if r.GetEnd() == endFailed || r.GetEnd() == endUnhealthy {
		why = toldBy(s)
	}
	startAttempt(r, s.GetAttempt()+1, hash, at)
	s.ObservedGeneration = r.GetWish().GetGeneration()
	r.Failures = failures
	if wait > 0 {
		r.NextAtBoottime = durationpb.New(at.Boot + wait)
		s.NextAt = timestamppb.New(at.Wall.Add(wait))
		s.Reason = ReasonBackoff
		tell(s, why)
	}
}

// tornDown notes that nothing is left.
func tornDown(r *sandboxhostv1.SandboxRecord, at moment) {
	r.Status.TornDownAt = timestamppb.New(at.Wall)
}

// mirror puts what is observed into the status.
func mirror(r *sandboxhostv1.SandboxRecord, o engine.Observed) {
	s := r.GetStatus()
	s.Addresses = nil
	for _, a := range o.Addresses {
		s.Addresses = append(s.Addresses, a.String())
	}
	for _, cs := range s.GetContainers() {
		cs.Pid, cs.Limits = 0, nil
		for _, c := range o.Containers {
			if c.Note.GetContainer() != cs.GetName() || c.Note.GetAttempt() != s.GetAttempt() {
				continue
			}
			cs.Id, cs.Pid, cs.Limits = c.ID, c.PID, c.Limits
			cs.OomKills = max(cs.GetOomKills(), c.OOMKills)
			cs.OomKillsBeside = max(cs.GetOomKillsBeside(), c.OOMKillsBeside)
			noteStopSignal(r, c)
			if !c.StartedAt.IsZero() {
				cs.StartedAt = timestamppb.New(c.StartedAt)
			}
		}
	}
}

// noteStopSignal keeps what asks a container to end.
func noteStopSignal(r *sandboxhostv1.SandboxRecord, c engine.Container) {
	if r.StopSignals == nil {
		r.StopSignals = map[string]uint32{}
	}
	r.StopSignals[c.Note.GetContainer()] = uint32(engine.StopSignal(c.Note))
}

// grace is the time between the begin of a stop and the kill of containers that have
// none of their own.
func grace(r *sandboxhostv1.SandboxRecord) time.Duration {
	if p := r.GetWish().GetSpec().GetTerminationGracePeriod(); p != nil {
		return p.AsDuration()
	}
	return defaultGrace
}

// restartBackoff is the series of waits of a sandbox: what its spec says, else that
// of the node.
func restartBackoff(r *sandboxhostv1.SandboxRecord, p backoff.Policy) backoff.Policy {
	b := r.GetWish().GetSpec().GetRestartBackoff()
	if b.GetInitial() != nil {
		p.Initial = b.GetInitial().AsDuration()
	}
	if b.GetCap() != nil {
		p.Cap = b.GetCap().AsDuration()
		p.Initial = min(p.Initial, p.Cap)
	}
	if b.GetResetAfter() != nil {
		p.Stable = b.GetResetAfter().AsDuration()
	}
	return p
}
