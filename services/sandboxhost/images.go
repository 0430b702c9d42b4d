package sandboxhost

import (
	"context"
	"sync"

	"staddle.internal/kit/config"
	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/pressure"
)

// imagesOf is what is done with the images of the node beside running them.
type imagesOf struct {
	host    *host.Host
	server  *image.Server
	sweeper *image.Sweeper
	changed chan struct{}
}

func newImages(p *process.Process, eng *containerd.Engine, h *host.Host) *imagesOf {
	gc := p.Config.Images.GC
	i := &imagesOf{host: h, changed: make(chan struct{}, 1)}
	users := func() ([]image.User, error) { return imageUsers(h) }
	i.server = image.NewServer(eng.Images(), image.ServerDeps{Users: users, MinAge: gc.MinAge.Std()})
	i.sweeper = image.NewSweeper(eng.Images(), image.Rules{
		HighPercent: gc.HighPercent, LowPercent: gc.LowPercent, MinFree: gc.MinFree.Bytes(),
		MinAge: gc.MinAge.Std(), MaxAge: gc.MaxAge.Std(), ImportGrace: gc.ImportGrace.Std(),
	}, image.SweeperDeps{Users: users, Changed: i.changed})
	return i
}

// run cleans, and tells the sweeper whenever a sandbox changes.
func (i *imagesOf) run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { // ends with ctx
		for ctx.Err() == nil { // a reader that was too far behind begins anew
			for range i.host.States().Subscribe(ctx) {
				select {
				case i.changed <- struct{}{}:
				default: // it will look anyway
				}
			}
		}
	})
	return i.sweeper.Run(ctx, ready)
}

// imageUsers are the sandboxes of this node with the images that they ask for; one
// that is gone for good needs none.
func imageUsers(h *host.Host) ([]image.User, error) {
	states, err := h.List()
	if err != nil {
		return nil, err
	}
	var users []image.User
	for _, state := range states {
		if state.GetStatus().GetTornDownAt() != nil {
			continue
		}
		for _, c := range state.GetSpec().GetContainers() {
			users = append(users, image.User{Name: "sandbox " + state.GetName(), Image: c.GetImage()})
		}
		users = append(users, pinned(state)...)
	}
	return users, nil
}

// newMonitor measures what the machine runs short of.
func newMonitor(p *process.Process, eng *containerd.Engine) *pressure.Monitor {
	return pressure.New(pressure.Config{Limits: limitsOf(p.Config.Pressure), Paths: []string{p.Paths.Var(Name)}},
		pressure.Deps{Roots: eng.Images().Roots, Group: eng.Tasks, Memory: eng.MemoryLeft, Log: p.Log})
}

func limitsOf(c config.Pressure) pressure.Limits {
	return pressure.Limits{
		MemoryMinFree: c.MemoryMinFree.Bytes(), MemoryStallPercent: c.MemoryStallPercent,
		DiskMinFree: c.DiskMinFree.Bytes(), DiskMinFreePercent: c.DiskMinFreePercent,
		PIDMinFreePercent: c.PIDMinFreePercent, Hold: c.Hold.Std(),
	}
}
