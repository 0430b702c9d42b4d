// Package grant owns the rights of sandboxes to mounted disks on this node: who
// was granted what, and when it is a fact that nobody can use it any more.
//
// A grant is durable before anybody acts on it. It is returned only when the host
// of sandboxes shows that the sandbox has no container: gone, torn down, or ended.
// A keeper that asks for its disks after a grant was revoked does not get it, and
// one that asked before has shown its phase before, so that a revocation sees it.
//
// It must never mount or unmount, and never return a grant because of a time or
// because something could not be asked. In the trail of a disk it comes after
// storage-agent, and before the keeper that waits for it.
package grant

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// bucket of the journal in which grants lie, by uid of the disk.
const bucket = "grants"

// Short names for the states.
const (
	held     = sandboxhostv1.GrantState_GRANT_STATE_HELD
	revoked  = sandboxhostv1.GrantState_GRANT_STATE_REVOKED
	returned = sandboxhostv1.GrantState_GRANT_STATE_RETURNED
	idle     = sandboxhostv1.GrantState_GRANT_STATE_IDLE
	parked   = sandboxhostv1.GrantState_GRANT_STATE_PARKED
)

// notes is where grants are kept; a *journal.Journal.
type notes interface {
	Update(fn func(tx journal.Tx) error) error
	View(fn func(tx journal.Tx) error) error
}

// host is what is asked about sandboxes; a *host.Host.
type host interface {
	// States has the state of every sandbox that is not forgotten.
	States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
	// Look makes a keeper look at its sandbox again.
	Look(uid id.Sandbox)
	// Buried says whether the uid was removed and is not accepted again.
	Buried(uid id.Sandbox) bool
}

// Store keeps the grants.
type Store struct {
	notes notes
	log   *slog.Logger
	hub   *watch.Hub[id.Disk, *sandboxhostv1.Grant]

	// mu guards what follows and is held over the write to the journal: changes
	// come one at a time, and who reads sees only what is durable.
	mu     sync.Mutex
	grants map[id.Disk]*sandboxhostv1.Grant
	host   host // nil until Run
}

// New returns a store that knows nothing before Load.
func New(n notes, log *slog.Logger) *Store {
	return &Store{notes: n, log: log, hub: watch.New[id.Disk, *sandboxhostv1.Grant](), grants: map[id.Disk]*sandboxhostv1.Grant{}}
}

// Load reads what was granted before this start. Keepers may ask for disks only
// afterwards.
func (s *Store) Load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.notes.View(func(tx journal.Tx) error {
		return journal.ForEachProto(tx, bucket, func(key string, g *sandboxhostv1.Grant) error {
			s.grants[id.Disk(key)] = g
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("load grants: %w", err)
	}
	for uid, g := range s.grants {
		s.hub.Set(uid, g)
	}
	return nil
}

// Disks returns the paths of the disks that a sandbox may use, by name.
func (s *Store) Disks(uid id.Sandbox) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := map[string]string{}
	for _, g := range s.grants {
		if g.GetSandboxUid() == string(uid) && g.GetState() == held {
			paths[g.GetDisk()] = g.GetPath()
		}
	}
	return paths
}

// Grants is where the grants can be read and watched.
func (s *Store) Grants() *watch.Hub[id.Disk, *sandboxhostv1.Grant] { return s.hub }

// retry is the wait before grants that could not be written are tried again.
var retry = backoff.Policy{Initial: 200 * time.Millisecond, Cap: 30 * time.Second, Stable: time.Minute}

// Run returns grants as sandboxes end, until ctx does. The host must be open. A
// return that cannot be written, on a full disk, is tried again: it holds up the
// disk's next holder, and nobody else.
func (s *Store) Run(ctx context.Context, h host, ready func()) error {
	s.mu.Lock()
	s.host = h
	s.mu.Unlock()
	for attempt := 0; ctx.Err() == nil; { // a reader that was cut off begins anew
		began := time.Now()
		err := s.follow(ctx, ready)
		if err == nil {
			continue
		}
		attempt = retry.Next(attempt, time.Since(began))
		wait := retry.Delay(attempt, rand.Float64())
		s.log.Warn("grants not returned", logging.Err(err), logging.RetryIn(wait))
		if err := backoff.Wait(ctx, wait); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// follow settles what each event about a sandbox allows. It is ready when it has
// looked at all of them once, and ends early if something could not be written. A
// repeated ready is harmless.
func (s *Store) follow(ctx context.Context, ready func()) error {
	var failed error
	synced := false
	for e := range s.host.States().Subscribe(ctx) {
		if err := s.take(e); err != nil {
			failed = err
		}
		if e.Kind == watch.Synced {
			synced = true
			ready()
		}
		if synced && failed != nil {
			return failed
		}
	}
	return nil
}

func (s *Store) take(e watch.Event[id.Sandbox, *sandboxhostv1.SandboxState]) error {
	if e.Kind == watch.Synced {
		return s.returnAbsent()
	}
	return s.settle(e.Key)
}

// returnAbsent settles the grants of sandboxes of which the host, which is open,
// knows nothing.
func (s *Store) returnAbsent() error {
	s.mu.Lock()
	sandboxes := map[id.Sandbox]bool{}
	for _, g := range s.grants {
		sandboxes[id.Sandbox(g.GetSandboxUid())] = true
	}
	s.mu.Unlock()
	for uid := range sandboxes {
		if err := s.settle(uid); err != nil {
			return err
		}
	}
	return nil
}

// settle returns the grants of a sandbox that can be returned, and lets those be
// unmounted that a hold keeps unused.
func (s *Store) settle(uid id.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for disk, g := range s.grants {
		if g.GetSandboxUid() != string(uid) {
			continue
		}
		var err error
		switch state, _ := s.host.States().Get(uid); {
		case s.over(g):
			err = s.moveLocked(disk, g, returned)
		case g.GetState() == held && state.GetHeld() && state.GetDead():
			// What it shows holds: before another attempt uses a disk it shows another phase,
			// and then asks for its disks anew.
			err = s.moveLocked(disk, g, idle)
		case unused(g) && state != nil && !state.GetHeld():
			err = s.dropLocked(disk, g)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unused says whether nobody can use a grant before it was given anew.
func unused(g *sandboxhostv1.Grant) bool { return g.GetState() == idle || g.GetState() == parked }

// over decides whether a grant can be returned now: it was asked back and no
// container of the sandbox is there, or the sandbox will never run again.
func (s *Store) over(g *sandboxhostv1.Grant) bool {
	if g.GetState() == returned || s.host == nil {
		return false
	}
	uid := id.Sandbox(g.GetSandboxUid())
	state, known := s.host.States().Get(uid)
	switch {
	case !known:
		// It may be granted to before it comes.
		return g.GetState() == revoked || s.host.Buried(uid)
	case state.GetStatus().GetTornDownAt() != nil:
		return true
	}
	phase := state.GetStatus().GetPhase()
	ended := phase == resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED || phase == resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
	return g.GetState() == revoked && ended
}

// Grant lets a sandbox use a disk; see GrantDisk of the contract.
func (s *Store) Grant(g *sandboxhostv1.Grant) error {
	uid, disk := id.Sandbox(g.GetSandboxUid()), id.Disk(g.GetDiskUid())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host == nil {
		return fault.New(fault.Unavailable, "grant disk %s: sandboxes of this node are not adopted yet", disk)
	}
	if s.host.Buried(uid) {
		return fault.WithReason(fault.New(fault.Conflict, "grant disk %s: sandbox %s was removed", disk, uid), "TOMBSTONE")
	}
	was := s.grants[disk]
	if err := mayGrant(was, g); err != nil {
		return err
	}
	if was.GetEpoch() == g.GetEpoch() {
		return nil // granted, or on its way back, already
	}
	return s.moveLocked(disk, g, held)
}

// mayGrant decides whether a disk may be granted over what was granted before; it
// is pure.
func mayGrant(was, g *sandboxhostv1.Grant) error {
	switch {
	case was == nil || (was.GetEpoch() < g.GetEpoch() && was.GetState() == returned):
		return nil
	case g.GetEpoch() < was.GetEpoch(), g.GetEpoch() == was.GetEpoch() && g.GetSandboxUid() != was.GetSandboxUid():
		return fault.WithReason(fault.New(fault.Conflict, "grant disk %s: epoch %d was granted to sandbox %s",
			g.GetDiskUid(), was.GetEpoch(), was.GetSandboxUid()), "STALE_EPOCH")
	case g.GetEpoch() > was.GetEpoch():
		return fault.WithReason(fault.New(fault.Conflict, "grant disk %s: sandbox %s has not given it back",
			g.GetDiskUid(), was.GetSandboxUid()), "IN_USE")
	}
	return nil
}

// Revoke asks a grant back; see RevokeDisk of the contract.
func (s *Store) Revoke(disk id.Disk, epoch uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[disk]
	switch {
	case g == nil || g.GetEpoch() != epoch || g.GetState() != held && !unused(g):
		return nil
	case unused(g):
		return s.moveLocked(disk, g, returned)
	}
	if err := s.moveLocked(disk, g, revoked); err != nil {
		return err
	}
	if g = s.grants[disk]; s.over(g) {
		return s.moveLocked(disk, g, returned)
	}
	return nil
}

// Park notes that an idle disk is unmounted; see ParkDisk of the contract.
func (s *Store) Park(disk id.Disk, epoch uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[disk]
	if g == nil || g.GetEpoch() != epoch || g.GetState() != idle {
		return nil
	}
	return s.moveLocked(disk, g, parked)
}

// Forget drops a returned grant; see ForgetGrant of the contract.
func (s *Store) Forget(disk id.Disk, epoch uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[disk]
	if g == nil || g.GetEpoch() != epoch {
		return nil
	}
	if g.GetState() != returned {
		return fault.WithReason(fault.New(fault.Conflict, "forget grant of disk %s: sandbox %s has not given it back",
			disk, g.GetSandboxUid()), "NOT_RETURNED")
	}
	return s.dropLocked(disk, g)
}

// dropLocked forgets a grant, durably first.
func (s *Store) dropLocked(disk id.Disk, g *sandboxhostv1.Grant) error {
	if err := s.notes.Update(func(tx journal.Tx) error { return tx.Delete(bucket, string(disk)) }); err != nil {
		return fmt.Errorf("forget grant of disk %s: %w", disk, err)
	}
	delete(s.grants, disk)
	s.hub.Delete(disk, g)
	return nil
}

// moveLocked writes a grant with a new state, and shows it.
func (s *Store) moveLocked(disk id.Disk, g *sandboxhostv1.Grant, to sandboxhostv1.GrantState) error {
	g = proto.CloneOf(g)
	g.State = to
	if err := s.notes.Update(func(tx journal.Tx) error { return journal.PutProto(tx, bucket, string(disk), g) }); err != nil {
		return fmt.Errorf("note grant of disk %s: %w", disk, err)
	}
	s.grants[disk] = g
	s.hub.Set(disk, g)
	uid := id.Sandbox(g.GetSandboxUid())
	s.log.Info("grant changed", disk.Attr(), uid.Attr(), logging.Epoch(g.GetEpoch()), logging.To(stateName(to)))
	if to == held {
		s.host.Look(uid)
	}
	return nil
}

// stateName is the name of a state in log lines.
func stateName(s sandboxhostv1.GrantState) string {
	return strings.TrimPrefix(s.String(), "GRANT_STATE_")
}
