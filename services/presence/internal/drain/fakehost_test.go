package drain

import (
	"context"
	"maps"
	"slices"
	"sync"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/watch"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// fakeHost is a sandboxhost: it holds what it is asked to and ends nothing by itself.
type fakeHost struct {
	boxes  *watch.Hub[string, *sandboxhostv1.SandboxState]
	grants *watch.Hub[string, *sandboxhostv1.Grant]

	mu     sync.Mutex // guards all below
	holds  map[sandboxhostv1.HoldPurpose]*sandboxhostv1.Hold
	away   error
	cut    func() // ends the streams
	placed int
	asked  int // how often for the holds
	told   *watch.Hub[struct{}, []*sandboxhostv1.Hold]
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		boxes: watch.New[string, *sandboxhostv1.SandboxState](), grants: watch.New[string, *sandboxhostv1.Grant](),
		holds: map[sandboxhostv1.HoldPurpose]*sandboxhostv1.Hold{}, cut: func() {},
		told: watch.New[struct{}, []*sandboxhostv1.Hold](),
	}
}

func (f *fakeHost) Holds(context.Context) ([]*sandboxhostv1.Hold, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.allLocked(), f.away
}

func (f *fakeHost) allLocked() []*sandboxhostv1.Hold {
	var all []*sandboxhostv1.Hold
	for _, purpose := range slices.Sorted(maps.Keys(f.holds)) {
		all = append(all, f.holds[purpose])
	}
	return all
}

func (f *fakeHost) WatchHolds(ctx context.Context, tell func(*sandboxhostv1.WatchHoldsResponse)) error {
	ctx, err := f.stream(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.told.Set(struct{}{}, f.allLocked())
	f.mu.Unlock()
	for ev := range f.told.Subscribe(ctx) {
		if ev.Kind != watch.Synced {
			tell(&sandboxhostv1.WatchHoldsResponse{Holds: ev.Value})
		}
	}
	return fault.New(fault.Unavailable, "the stream ended")
}

// change puts a hold there, or takes it away, as somebody else may.
func (f *fakeHost) change(p sandboxhostv1.HoldPurpose, h *sandboxhostv1.Hold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[p] = h
	if h == nil {
		delete(f.holds, p)
	}
	f.told.Set(struct{}{}, f.allLocked())
}

func (f *fakeHost) Ensure(_ context.Context, h *sandboxhostv1.Hold) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away == nil {
		f.placed++
		f.holds[h.GetPurpose()] = h
		f.told.Set(struct{}{}, f.allLocked())
	}
	return f.away
}

func (f *fakeHost) Lift(_ context.Context, p sandboxhostv1.HoldPurpose) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away == nil {
		delete(f.holds, p)
		f.told.Set(struct{}{}, f.allLocked())
	}
	return f.away
}

// stream is a context that ends when the host goes away.
func (f *fakeHost) stream(ctx context.Context) (context.Context, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	before := f.cut
	f.cut = func() { before(); cancel() }
	return ctx, f.away
}

func (f *fakeHost) Sandboxes(ctx context.Context, tell func(*sandboxhostv1.WatchSandboxesResponse)) error {
	ctx, err := f.stream(ctx)
	if err != nil {
		return err
	}
	for ev := range f.boxes.Subscribe(ctx) {
		switch ev.Kind {
		case watch.Synced:
			tell(&sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Synced{Synced: true}})
		case watch.Deleted:
			tell(&sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Forgotten{Forgotten: ev.Value}})
		default:
			tell(&sandboxhostv1.WatchSandboxesResponse{Event: &sandboxhostv1.WatchSandboxesResponse_Changed{Changed: ev.Value}})
		}
	}
	return fault.New(fault.Unavailable, "the stream ended")
}

func (f *fakeHost) Grants(ctx context.Context, tell func(*sandboxhostv1.WatchGrantsResponse)) error {
	ctx, err := f.stream(ctx)
	if err != nil {
		return err
	}
	for ev := range f.grants.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			tell(&sandboxhostv1.WatchGrantsResponse{Event: &sandboxhostv1.WatchGrantsResponse_Synced{Synced: true}})
			continue
		}
		tell(&sandboxhostv1.WatchGrantsResponse{Event: &sandboxhostv1.WatchGrantsResponse_Changed{Changed: ev.Value}})
	}
	return fault.New(fault.Unavailable, "the stream ended")
}

// leave takes the host away, or lets it come back.
func (f *fakeHost) leave(away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	if away != nil {
		f.cut()
		f.cut = func() {}
	}
}

// standing lists the purposes of the holds that stand.
func (f *fakeHost) standing() (drain, shutdown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds[forDrain] != nil, f.holds[forShutdown] != nil
}

// questions is how often the holds were asked for.
func (f *fakeHost) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}
