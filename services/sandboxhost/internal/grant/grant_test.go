package grant

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/watch"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	disk  id.Disk    = "01K00000000000000000000000"
	one   id.Sandbox = "01K0000000000000000000000A"
	other id.Sandbox = "01K0000000000000000000000B"
)

// fakeHost has the states that a test sets.
type fakeHost struct {
	hub    *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState]
	buried map[id.Sandbox]bool
}

func (h *fakeHost) States() *watch.Hub[id.Sandbox, *sandboxhostv1.SandboxState] { return h.hub }
func (h *fakeHost) Look(id.Sandbox)                                             {}
func (h *fakeHost) Buried(uid id.Sandbox) bool                                  { return h.buried[uid] }

func (h *fakeHost) show(uid id.Sandbox, phase resourcev1.SandboxPhase, tornDown bool) {
	status := &resourcev1.SandboxStatus{Phase: phase}
	if tornDown {
		status.TornDownAt = timestamppb.Now()
	}
	h.hub.Set(uid, &sandboxhostv1.SandboxState{Uid: string(uid), Status: status})
}

// bench is a store over a real journal, which can be started anew.
type bench struct {
	t    *testing.T
	path string
	host *fakeHost
	full atomic.Bool // the disk that the journal lies on
	stop func()
	*Store
}

// fullDisk is a journal that cannot be written while its disk is full.
type fullDisk struct {
	*journal.Journal
	full *atomic.Bool
}

func (d fullDisk) Update(fn func(tx journal.Tx) error) error {
	if d.full.Load() {
		return fault.New(fault.Exhausted, "no space left on device")
	}
	return d.Journal.Update(fn)
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, path: filepath.Join(t.TempDir(), "journal.db"), host: &fakeHost{
		hub: watch.New[id.Sandbox, *sandboxhostv1.SandboxState](), buried: map[id.Sandbox]bool{},
	}}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) start() {
	log := slog.New(slog.DiscardHandler)
	j, _, err := journal.Open(journal.Options{Path: b.path, Kind: "test", Version: 1, Log: log})
	if err != nil {
		b.t.Fatal(err)
	}
	b.Store = New(fullDisk{j, &b.full}, log)
	if err := b.Load(); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	store := b.Store
	go func() { done <- store.Run(ctx, b.host, sync.OnceFunc(func() { close(ready) })) }()
	<-ready
	b.stop = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			b.t.Errorf("run ended with %v", err)
		}
		if err := j.Close(); err != nil {
			b.t.Error(err)
		}
	}
}

func (b *bench) restart() {
	b.stop()
	b.start()
}

func (b *bench) grant(uid id.Sandbox, epoch uint64) error {
	return b.Grant(&sandboxhostv1.Grant{DiskUid: string(disk), Disk: "data", SandboxUid: string(uid), Epoch: epoch, Path: "/mnt/data"})
}

func (b *bench) state() sandboxhostv1.GrantState {
	g, _ := b.Grants().Get(disk)
	return g.GetState()
}

func (b *bench) awaitState(want sandboxhostv1.GrantState) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	got, err := watch.Await(ctx, b.Grants(), disk, func(g *sandboxhostv1.Grant) bool { return g.GetState() == want })
	if err != nil {
		b.t.Fatalf("grant is %v, want %v: %v", got.GetState(), want, err)
	}
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestStore_AGrantIsReturnedOnlyByFacts(t *testing.T) {
	b := newBench(t)
	b.must(b.grant(one, 1)) // before the sandbox comes
	b.must(b.grant(one, 1))
	if got := b.Disks(one)["data"]; got != "/mnt/data" {
		t.Fatalf("got path %q", got)
	}
	if err := b.grant(other, 2); !errors.Is(err, fault.Conflict) || fault.Reason(err) != "IN_USE" {
		t.Fatalf("got %v, want IN_USE", err)
	}
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, false)
	b.must(b.Revoke(disk, 1))
	if got := b.state(); got != revoked {
		t.Fatalf("a grant in use is %v after it was revoked", got)
	}
	if len(b.Disks(one)) != 0 {
		t.Fatal("a revoked disk is still handed out")
	}
	if err := b.Forget(disk, 1); fault.Reason(err) != "NOT_RETURNED" {
		t.Fatalf("got %v, want NOT_RETURNED", err)
	}
	b.restart()
	if got := b.state(); got != revoked {
		t.Fatalf("after a restart the grant is %v", got)
	}
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING, false)
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, false)
	b.awaitState(returned)
	if err := b.grant(other, 1); fault.Reason(err) != "STALE_EPOCH" {
		t.Fatalf("got %v, want STALE_EPOCH", err)
	}
	b.must(b.grant(other, 2))
	if len(b.Disks(one)) != 0 || len(b.Disks(other)) != 1 {
		t.Fatal("the disk is not the other sandbox's alone")
	}
}

func TestStore_TornDownReturnsWithoutBeingAsked(t *testing.T) {
	b := newBench(t)
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, false)
	b.must(b.grant(one, 1))
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, false)
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, true)
	b.awaitState(returned)
	for range 2 {
		b.must(b.Forget(disk, 1))
		b.must(b.Revoke(disk, 1))
	}
}

func TestStore_BuriedSandboxGetsNothing(t *testing.T) {
	b := newBench(t)
	b.must(b.grant(one, 1))
	b.stop()
	b.host.buried[one] = true // removed and forgotten while the store was away
	b.start()
	b.awaitState(returned)
	if err := b.grant(one, 2); fault.Reason(err) != "TOMBSTONE" {
		t.Fatalf("got %v, want TOMBSTONE", err)
	}
}

// A full disk keeps a grant from being returned, and nothing from running.
func TestStore_ReturnsWhenThereIsRoomAgain(t *testing.T) {
	b := newBench(t)
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING, false)
	if err := b.grant(one, 1); err != nil {
		t.Fatal(err)
	}
	b.full.Store(true)
	b.host.show(one, resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, true)
	b.restart() // ready all the same
	if got := b.state(); got != held {
		t.Errorf("got %v on a full disk, want what is durable: held", got)
	}
	b.full.Store(false)
	b.awaitState(returned)
}

// A disk of a sandbox that is held and dead may be unmounted, and its grant comes
// anew once the hold is lifted: the right to it never changed hands.
func TestStore_AHeldSandboxGivesItsDiskBackForAWhile(t *testing.T) {
	b := newBench(t)
	show := func(phase resourcev1.SandboxPhase, held, dead bool) {
		b.host.hub.Set(one, &sandboxhostv1.SandboxState{
			Uid: string(one), Held: held, Dead: dead, Status: &resourcev1.SandboxStatus{Phase: phase},
		})
	}
	b.must(b.grant(one, 1))
	show(resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, false, true) // as asked: it may start at any time
	show(resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING, true, false)
	b.must(b.Park(disk, 1))
	b.restart()
	if got := b.state(); got != held {
		t.Fatalf("a grant in use is %v under a hold, want held", got)
	}
	show(resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED, true, true)
	b.awaitState(idle)
	if len(b.Disks(one)) != 0 {
		t.Fatal("an idle disk is still handed out")
	}
	b.must(b.Park(disk, 2)) // of another right
	b.must(b.grant(one, 1)) // says nothing new
	if got := b.state(); got != idle {
		t.Fatalf("the grant is %v, want idle", got)
	}
	b.must(b.Park(disk, 1))
	b.restart()
	if got := b.state(); got != parked {
		t.Fatalf("after a restart the grant is %v, want parked", got)
	}
	if err := b.grant(other, 2); fault.Reason(err) != "IN_USE" {
		t.Fatalf("a parked disk for another sandbox: %v, want IN_USE", err)
	}
	show(resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING, false, false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := watch.AwaitGone(ctx, b.Grants(), disk); err != nil {
		t.Fatalf("the grant after the hold: %v", err)
	}
	b.must(b.grant(one, 1))
	if len(b.Disks(one)) != 1 {
		t.Fatal("the disk is not the sandbox's again")
	}
}

func TestStore_RevokeReturnsWhatNobodyUses(t *testing.T) {
	b := newBench(t)
	b.must(b.grant(one, 1))
	b.host.hub.Set(one, &sandboxhostv1.SandboxState{
		Uid: string(one), Held: true, Dead: true, Status: &resourcev1.SandboxStatus{Phase: resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED},
	})
	b.awaitState(idle)
	b.must(b.Revoke(disk, 1))
	if got := b.state(); got != returned {
		t.Fatalf("an idle grant is %v after it was revoked, want returned", got)
	}
}
