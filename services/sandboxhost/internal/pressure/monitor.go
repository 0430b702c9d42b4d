package pressure

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/filesystem"
)

const (
	// period is how often is measured: the kernel tells nobody when a disk fills or
	// process ids run out, and a reading is a few small files and no disk. Stalls for
	// memory it tells at once, where it counts them.
	period = 10 * time.Second
	// relieveLimit bounds how long a disk may be cleaned before it counts as short.
	relieveLimit = time.Minute
)

// Config says what is measured.
type Config struct {
	Limits Limits
	// Period is how often is measured; 0 means every 10 s.
	Period time.Duration
	// Proc is where the kernel's files are; "" means /proc.
	Proc string
	// Paths lie on the filesystems that are measured.
	Paths []string
}

// Deps are what a Monitor works with.
type Deps struct {
	// Roots are the folders of images, which are measured as well.
	Roots func(ctx context.Context) ([]string, error)
	// Group counts the tasks of all workloads, and how many they may have; 0 for no
	// limit.
	Group func() (now, most int64, err error)
	// Memory is what the control groups around all workloads leave of memory, and their
	// tightest limit; 0 for no limit.
	Memory func() (available, limit int64, err error)
	// Log gets each beginning and end of a shortage.
	Log *slog.Logger
}

// cleaner removes images that nobody needs; an *image.Sweeper.
type cleaner interface {
	// Clean removes what may be, and returns when that is done.
	Clean(ctx context.Context)
	// Measured is told how full the disks are, and does not wait.
	Measured(disks []filesystem.Space)
}

// Monitor measures. One goroutine does; anybody may ask what it found.
type Monitor struct {
	cfg     Config
	deps    Deps
	cleaner cleaner
	hub     *watch.Hub[struct{}, map[Resource]Track]
}

// New returns one that knows nothing before Run.
func New(cfg Config, deps Deps) *Monitor {
	if cfg.Period == 0 {
		cfg.Period = period
	}
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	m := &Monitor{cfg: cfg, deps: deps, hub: watch.New[struct{}, map[Resource]Track]()}
	tracks := map[Resource]Track{}
	for _, r := range Resources {
		tracks[r] = Track{Reason: "not measured yet", Since: time.Now()}
	}
	m.hub.Set(struct{}{}, tracks)
	return m
}

// Relieve has a disk cleaned by c before it counts as short, and c told of each
// measurement. It is called before Run.
func (m *Monitor) Relieve(c cleaner) { m.cleaner = c }

// Run measures once, says ready, and goes on until ctx ends.
func (m *Monitor) Run(ctx context.Context, ready func()) error {
	clock := time.NewTicker(m.cfg.Period)
	defer clock.Stop()
	stalled, stop := m.stalls()
	defer stop()
	m.look(ctx, false)
	ready()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-clock.C:
			m.look(ctx, false)
		case <-stalled:
			m.look(ctx, true)
		}
	}
}

// stalls has the kernel tell when all that runs waits too long for memory. Where it
// cannot, the channel is silent, and the clock is what there is.
func (m *Monitor) stalls() (<-chan struct{}, func()) {
	if m.cfg.Limits.MemoryStallPercent == 0 {
		return nil, func() {}
	}
	trigger, err := arm(procFiles(m.cfg.Proc).pressure("memory"), m.cfg.Limits.MemoryStallPercent)
	if err != nil {
		m.deps.Log.Debug("stalls for memory are read by the clock", logging.Err(err))
		return nil, func() {}
	}
	return trigger.fired, trigger.close
}

// Tracks is how each resource is. It must not be changed.
func (m *Monitor) Tracks() map[Resource]Track {
	tracks, _ := m.hub.Get(struct{}{}) // set in New and never deleted
	return tracks
}

// Follow tells how each resource is now and after each change, until ctx ends, or a
// reader is too far behind. Nothing that is told must be changed.
func (m *Monitor) Follow(ctx context.Context, tell func(map[Resource]Track) error) error {
	for ev := range m.hub.Subscribe(ctx) {
		if ev.Kind == watch.Synced {
			continue
		}
		if err := tell(ev.Value); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// reasons are those of refusals, for machines.
var reasons = map[Resource]string{Memory: "MEMORY_PRESSURE", Disk: "DISK_PRESSURE", PIDs: "PID_PRESSURE"}

// Refusal is fault.Exhausted while the machine runs short of something, nil else.
func (m *Monitor) Refusal() error {
	tracks := m.Tracks()
	for _, r := range Resources {
		if t := tracks[r]; t.State == Short {
			return fault.WithReason(fault.New(fault.Exhausted, "this node takes no new sandboxes because of %s: %s", r, t.Reason), reasons[r])
		}
	}
	return nil
}

// look measures, and tells what changed. stalled says that the kernel has just told of a
// stall for memory.
func (m *Monitor) look(ctx context.Context, stalled bool) {
	before := m.Tracks()
	verdicts := map[Resource]Verdict{Memory: m.memory(stalled), Disk: m.disks(ctx), PIDs: m.tasks()}
	if verdicts[Disk].Short != "" && m.cleaner != nil && before[Disk].State != Unknown {
		limited, cancel := context.WithTimeout(ctx, relieveLimit)
		m.cleaner.Clean(limited)
		cancel()
		verdicts[Disk] = m.disks(ctx)
	}
	now, changed := time.Now(), false
	after := map[Resource]Track{}
	for _, r := range Resources {
		after[r] = before[r].Next(now, verdicts[r], m.cfg.Limits.Hold)
		changed = changed || after[r] != before[r]
		if after[r].State != before[r].State {
			m.say(r, after[r])
		}
	}
	if changed {
		m.hub.Set(struct{}{}, after)
	}
}

func (m *Monitor) say(r Resource, t Track) {
	switch t.State {
	case Short:
		m.deps.Log.Warn("pressure began", logging.Component(string(r)), logging.Reason(t.Reason))
	case Well:
		m.deps.Log.Info("no pressure", logging.Component(string(r)))
	case Unknown:
	}
}

func (m *Monitor) memory(stalled bool) Verdict {
	use, err := procFiles(m.cfg.Proc).memory()
	if err != nil {
		return Verdict{Err: err}
	}
	use.Stalled = stalled
	if m.deps.Memory != nil {
		available, limit, err := m.deps.Memory()
		if err != nil {
			return Verdict{Err: err}
		}
		use = use.within(available, limit)
	}
	return JudgeMemory(use, m.cfg.Limits)
}

func (m *Monitor) tasks() Verdict {
	machine, err := procFiles(m.cfg.Proc).tasks()
	if err != nil {
		return Verdict{Err: err}
	}
	uses := []PIDUse{machine}
	if m.deps.Group != nil {
		now, most, err := m.deps.Group()
		if err != nil {
			return Verdict{Err: err}
		}
		uses = append(uses, PIDUse{Of: "all workloads", Now: now, Most: most})
	}
	return JudgePIDs(uses, m.cfg.Limits)
}

// disks measures each filesystem once. One that is known to be short counts also while
// the runtime cannot say where its own are.
func (m *Monitor) disks(ctx context.Context) Verdict {
	paths := m.cfg.Paths
	var unknown error
	if m.deps.Roots != nil {
		roots, err := m.deps.Roots(ctx)
		if err != nil {
			unknown = fmt.Errorf("measure disks: %w", err)
		}
		paths = append(paths[:len(paths):len(paths)], roots...)
	}
	var disks []filesystem.Space
	seen := map[uint64]bool{}
	for _, path := range paths {
		s, err := filesystem.Measure(path)
		if err != nil {
			unknown = err
			continue
		}
		if !seen[s.Device] {
			seen[s.Device] = true
			disks = append(disks, s)
		}
	}
	if m.cleaner != nil {
		m.cleaner.Measured(disks)
	}
	if v := JudgeDisks(disks, m.cfg.Limits); v.Short != "" || unknown == nil {
		return v
	}
	return Verdict{Err: unknown}
}
