package sandboxhost

import (
	"context"

	"staddle.internal/kit/process"
	"staddle.internal/services/sandboxhost/internal/engine/containerd"
	"staddle.internal/services/sandboxhost/internal/filesystem"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/pressure"
)

// relief makes room before a disk counts as short: by images that nothing uses, and then
// by what is kept of removed sandboxes, if it is their disk.
type relief struct {
	*image.Sweeper
	output relieved
}

func newRelief(p *process.Process, eng *containerd.Engine, images *imagesOf) relief {
	return relief{images.sweeper, relieved{output: eng.Logs(), path: p.Paths.Var(Name), limits: limitsOf(p.Config.Pressure)}}
}

// Clean is for package pressure.
func (r relief) Clean(ctx context.Context) {
	r.Sweeper.Clean(ctx)
	r.output.makeRoom(ctx)
}

// relieved is the disk with what is kept of removed sandboxes.
type relieved struct {
	output *logs.Store
	path   string
	limits pressure.Limits
}

// makeRoom gives up one after the other, that of the sandbox that was removed first
// before the others, until the disk is not short any more.
func (r relieved) makeRoom(ctx context.Context) {
	for ctx.Err() == nil && r.short() && r.output.GiveUp() {
	}
}

// short says whether the disk is known to be.
func (r relieved) short() bool {
	s, err := filesystem.Measure(r.path)
	return err == nil && pressure.JudgeDisks([]filesystem.Space{s}, r.limits).Short != ""
}
