package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// reasonNoServices is the host's word for a node that has no services by its settings.
const reasonNoServices = "SERVICES_DISABLED"

// ServiceRecords is what the loop for services needs of clusteraccess. Its errors carry
// kinds.
type ServiceRecords interface {
	// Watch tells every message of the stream of service records until it ends, and
	// returns why, never nil.
	Watch(ctx context.Context, tell func(*clusteraccessv1.WatchResourcesResponse)) error
	// Get asks the coordinator itself for a service record: NotFound is a fact of a
	// history that contains the position.
	Get(ctx context.Context, uid string, at *resourcev1.Position) error
}

// ServiceHost is what the loop for services needs of sandboxhost. Its errors carry kinds.
type ServiceHost interface {
	// Services lists the wishes of the cluster that the host keeps.
	Services(ctx context.Context) ([]*sandboxhostv1.ServiceWish, error)
	// EnsureService hands over the wish in a record, and where in the history it is.
	EnsureService(ctx context.Context, record *resourcev1.Resource, at *resourcev1.Position) error
	// RemoveService ends a wish.
	RemoveService(ctx context.Context, uid string) error
}

// ServiceDeps is what the loop for services needs.
type ServiceDeps struct {
	// Records are where services come from.
	Records ServiceRecords
	// Host keeps them.
	Host ServiceHost
	// Log gets what is decided.
	Log *slog.Logger
	// Foreign is told how many services the host holds of which the coordinator's
	// history does not know.
	Foreign func(int)
	// Refused is told how many services the host does not take. A node without services
	// refuses none.
	Refused func(int)
}

// Services makes the services of this node match the records of the cluster. There are
// few, and their host is fast: so each change looks at all of them, one after the other.
type Services struct {
	deps   ServiceDeps
	resync time.Duration
	known  *serviceView

	// Those of the goroutine of Run alone.
	seen    map[string]*resourcev1.Position
	foreign map[string]uint64 // uid → epoch at which that was said
	told    map[string]string // uid → what was logged about it last
}

// NewServices returns a loop that does nothing until Run, and looks at everything again
// after resync.
func NewServices(resync time.Duration, deps ServiceDeps) *Services {
	return &Services{
		deps: deps, resync: resync, known: newServiceView(),
		seen: map[string]*resourcev1.Position{}, foreign: map[string]uint64{}, told: map[string]string{},
	}
}

// retryServices spaces what failed.
var retryServices = backoff.Policy{Initial: retryFirst, Cap: retryCap}

// Run works until ctx ends. It is ready when the stream of records has told all that it
// has.
func (s *Services) Run(ctx context.Context, ready func()) error {
	heard := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait() // ends with ctx
	wg.Go(func() {
		feed(ctx, s.deps.Log, "clusteraccess", s.follow, sync.OnceFunc(func() { close(heard) }))
	})
	select {
	case <-heard:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ready()
	for attempt := 0; ctx.Err() == nil; {
		wait := s.resync
		if s.pass(ctx) {
			attempt++
			wait = retryServices.Delay(attempt, rand.Float64())
		} else {
			attempt = 0
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.known.changed:
			attempt = 0
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return context.Cause(ctx)
}

func (s *Services) follow(ctx context.Context, heard func()) error {
	s.known.away()
	defer s.known.away()
	return s.deps.Records.Watch(ctx, func(msg *clusteraccessv1.WatchResourcesResponse) {
		if s.known.event(msg) {
			heard()
		}
	})
}

// pass looks at all services once, and reports whether something is to be tried again.
func (s *Services) pass(ctx context.Context) (again bool) {
	f, epoch, live := s.known.facts()
	if !live {
		return false
	}
	wishes, err := s.deps.Host.Services(ctx)
	s.tell("", "all", err)
	if err != nil {
		return true
	}
	f.Seen, f.Wishes = s.seen, map[string]*sandboxhostv1.ServiceWish{}
	for _, w := range wishes {
		f.Wishes[w.GetUid()] = w
	}
	see(f)
	maps.DeleteFunc(s.told, func(uid, _ string) bool { return uid != "" && f.Records[uid] == nil && f.Wishes[uid] == nil })
	absent, ensure := planServices(f)
	foreign, refused := 0, 0
	for _, gone := range absent { // first, so that names and addresses are free
		lost, err := s.confirm(ctx, gone, epoch)
		s.tell(gone.wish.GetUid(), gone.wish.GetName(), err)
		again = again || err != nil && !lost
		if lost {
			foreign++
		}
	}
	for _, w := range planYields(f, ensure) {
		_ = s.deps.Host.EnsureService(ctx, w.record, w.at) // what comes of it is told of what follows
	}
	for _, w := range ensure {
		err := s.deps.Host.EnsureService(ctx, w.record, w.at)
		s.tell(w.record.GetMeta().GetUid(), w.record.GetMeta().GetName(), err)
		again = again || err != nil
		if err != nil && !errors.Is(err, fault.Unavailable) && fault.Reason(err) != reasonNoServices {
			refused++
		}
	}
	s.deps.Foreign(foreign)
	s.deps.Refused(refused)
	return again
}

var errBehind = fault.New(fault.Unavailable, "its record is there, or was there a moment ago, and the mirror does not have it")

// confirm asks the coordinator itself whether a record is gone, in a history in which it
// was, and ends the wish only then. lost says that this history does not know of it: the
// service is kept, and asked about again when the mirror was filled anew.
func (s *Services) confirm(ctx context.Context, gone unnamed, epoch uint64) (lost bool, err error) {
	uid := gone.wish.GetUid()
	if said, ok := s.foreign[uid]; ok && said == epoch {
		return true, errForeign
	}
	delete(s.foreign, uid)
	err = fault.WithReason(errForeign, reasonOtherHistory)
	if gone.at != nil {
		err = s.deps.Records.Get(ctx, uid, gone.at)
	}
	switch {
	case fault.Reason(err) == reasonOtherHistory:
		s.foreign[uid] = epoch
		return true, errForeign
	case err == nil:
		return false, errBehind
	case !errors.Is(err, fault.NotFound):
		return false, err
	}
	if !s.known.still(uid, epoch) {
		return false, errBehind
	}
	if err := s.deps.Host.RemoveService(ctx, uid); err != nil {
		return false, err
	}
	s.deps.Log.Info("service gone", logging.Service(gone.wish.GetName()))
	return false, nil
}

var errForeign = fault.New(fault.Conflict, "it is kept: the history of the cluster that it belongs to is another one, or not known")

// tell logs what is wrong with a service, once while it stays the same.
func (s *Services) tell(uid, name string, err error) {
	switch text := errText(err); {
	case text == s.told[uid]:
	case err == nil:
		delete(s.told, uid)
		s.deps.Log.Info("service as it should be", logging.Service(name))
	default:
		s.told[uid] = text
		s.deps.Log.Warn("service not as it should be", logging.Service(name), logging.Err(err))
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
