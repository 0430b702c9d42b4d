// Package child owns the processes of the components: how they are made, what
// they inherit, how they end, and what is left of them.
//
// All children are made by one goroutine on one thread, and each is waited for by
// its own number and never by "any child". A child of ours gets an exact
// environment, its user and capabilities, a leash, its listening socket, the files
// that its predecessor left in the fd store, and a cgroup that is killed and seen
// empty before the next one starts. What an earlier supervisor left is ended
// before anything starts.
//
// It must never decide when a component starts or ends: it does what the loop
// (package supervise) asks for, once. In the trail it is the last step of a start.
package child

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/logging"
)

// Config says which children there are, and where their things lie.
type Config struct {
	// Specs of all components.
	Specs []Spec
	// RunDir is the supervisor's own folder of what ends with the boot: notes and
	// the socket of the fd store.
	RunDir string
	// LogDir gets the output of the children.
	LogDir string
	// Cgroup is the cgroup of all components, from CgroupBase. Empty means that
	// children have none of their own.
	Cgroup string
	// LeftoverGrace is how long a foreign left-over may take to end.
	LeftoverGrace time.Duration
	// Folders makes the folders that sockets and components need. It is called again
	// when one was lost. Nil means that there are none.
	Folders func() error
	// SpareDirs are where sockets have their second names, the best first. All are
	// made; one that is on another file system than the sockets is of no use.
	SpareDirs []string
	// OwnSockets are paths of sockets that this process itself serves, to be brought
	// back like those of the components.
	OwnSockets []string
	// Before is what the program before a re-exec kept open. Nil means that this is
	// the first.
	Before *Handover
	// Trial says that this program is only tried: Before has stand-ins, and nothing is
	// done to anything outside this process.
	Trial bool
}

// Exit tells how a child ended.
type Exit struct {
	Name string
	PID  int
	// How is "exit code 1" or "signal killed".
	How string
	// Code is set if it ended by itself, Signal, such as "killed", if that ended it.
	Code   *int
	Signal string
}

// Deps are what a Runner needs from others.
type Deps struct {
	Log *slog.Logger
	// Spawner makes the children. It must be served while Run runs.
	Spawner *Spawner
	// Exited learns of each end exactly once, when also everything is gone that
	// the process left in its cgroup.
	Exited func(Exit)
	// Lost learns of a process that cannot be reached any more, and why.
	Lost func(name string, pid int, reason string)
}

// Runner makes, ends and reaps children.
type Runner struct {
	cfg     Config
	deps    Deps
	store   *fdstore.Manager
	outputs *outputs
	boot    string
	own     uint64   // capabilities of this process
	told    sync.Map // troubles by their key
	trouble string   // of the places of sockets; owned by their keeper

	wg sync.WaitGroup // one goroutine per child

	mu       sync.Mutex // guards all below
	children map[string]*child
	owners   map[int]string // by process id: the present child of each, or its last
	askers   map[int]bool   // processes of ours that are no component's
}

// child is one component's present or last process, and what outlives it.
type child struct {
	spec   Spec
	socket *socket // nil if it has none
	tcp    *tcp    // the same
	cgroup cgroup

	pid     int // 0 while there is none
	process *os.Process
	leash   *os.File
	ended   *Exit // of its last process, when pid is 0
	made    bool  // the process made the socket that its spec says it makes
}

// New returns a Runner without children.
func New(cfg Config, deps Deps) *Runner {
	r := &Runner{
		cfg: cfg, deps: deps, outputs: newOutputs(cfg.LogDir),
		children: map[string]*child{}, owners: map[int]string{}, askers: map[int]bool{},
	}
	r.outputs.hold = r.holdUp
	store := fdstore.ManagerConfig{Path: r.notifySocket()}
	if cfg.Before != nil {
		store.Socket = os.NewFile(uintptr(cfg.Before.Notify), "notify")
	}
	r.store = fdstore.NewManager(store,
		fdstore.ManagerDeps{Owner: r.owner, Log: deps.Log})
	return r
}

func (r *Runner) notifySocket() string { return filepath.Join(r.cfg.RunDir, "notify.sock") }

// owner says whose process wrote to the fd store: the number counts until the
// component has its next process, so that words of the dying are heard. Meanwhile
// the number may be used again, so that the user has to be the component's too.
func (r *Runner) owner(pid int, uid uint32) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, ok := r.owners[pid]
	c := r.children[name]
	if !ok || c == nil || uid != c.spec.user() {
		return "", false
	}
	return name, true
}

// Run ends left-overs, or takes over the children from before a re-exec, makes the
// sockets, and then serves Start until ctx ends. Children should have been ended
// before; those that were not lose their leash.
func (r *Runner) Run(ctx context.Context, ready func()) error {
	if r.cfg.Trial {
		return r.rehearse(ctx, ready)
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	var chores sync.WaitGroup
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	err := r.store.Run(ctx, func() {
		for _, chore := range []func(context.Context){r.boundOutputs, r.keepPlaces, r.reapOrphans} {
			chores.Go(func() { chore(stopped) }) // owned by Run: ends with stopped
		}
		ready()
	})
	stop()
	chores.Wait()
	err = errors.Join(err, r.release())
	r.wg.Wait()
	return err
}

// prepare makes what children find when they start.
func (r *Runner) prepare(ctx context.Context) (err error) {
	if r.boot, err = boottime.ID(); err != nil {
		return err
	}
	if r.own, err = ownCapabilities(); err != nil {
		return err
	}
	// What whoever started us has left open by accident is for no child.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		r.deps.Log.Warn("inherited files not marked", logging.Err(err))
	}
	if r.cfg.Before == nil {
		if err := r.dropSpares(); err != nil {
			return err
		}
	}
	if err := r.makeFolders(); err != nil {
		return err
	}
	if r.cfg.Before == nil {
		if err := r.endLeftovers(ctx); err != nil {
			return err
		}
		r.endTrial(ctx)
	}
	for _, s := range r.cfg.Specs {
		if err := r.addChild(ctx, s); err != nil {
			return fmt.Errorf("prepare component %s: %w", s.Name, err)
		}
	}
	if r.cfg.Before != nil {
		return r.takeOver(ctx, r.cfg.Before)
	}
	return nil
}

// makeFolders makes all folders that are not there.
func (r *Runner) makeFolders() error {
	var errs []error
	if r.cfg.Folders != nil {
		errs = append(errs, r.cfg.Folders())
	}
	for dir, mode := range map[string]os.FileMode{r.cfg.RunDir: 0o755, r.cfg.LogDir: 0o750} {
		if err := os.MkdirAll(dir, mode); err != nil {
			errs = append(errs, fmt.Errorf("make folder: %w", err))
		}
	}
	for _, dir := range r.cfg.SpareDirs {
		if err := os.MkdirAll(dir, 0o700); err != nil { // sockets go without a second name
			r.once("folder "+dir, func() { r.deps.Log.Warn("folder not made", logging.Path(dir), logging.Err(err)) })
		}
	}
	return errors.Join(errs...)
}

func (r *Runner) addChild(ctx context.Context, s Spec) (err error) {
	c := &child{spec: s}
	before := r.cfg.Before.of(s.Name)
	if !s.Foreign {
		if c.cgroup, err = makeCgroup(r.cfg.Cgroup, s.Name); err != nil {
			return err
		}
		if before == nil || before.PID == 0 {
			if err := c.cgroup.clear(ctx); err != nil { // it holds up this component only
				r.deps.Log.Warn("processes left", logging.Component(s.Name), logging.Err(err))
			}
		}
	}
	if s.Socket != "" {
		c.socket = &socket{path: s.Socket, spares: r.cfg.SpareDirs, uid: s.UID, gid: s.GID}
		if err := c.socket.begin(before); err != nil { // every start of it tries again
			r.deps.Log.Warn("socket not made", logging.Component(s.Name), logging.Err(err))
		}
	}
	if s.Address != nil {
		c.tcp = &tcp{address: s.Address}
		if err := c.tcp.begin(before); err != nil { // the same
			r.deps.Log.Warn("socket not made", logging.Component(s.Name), logging.Err(err))
		}
	}
	r.mu.Lock()
	r.children[s.Name] = c
	r.mu.Unlock()
	return nil
}

// endLeftovers ends all that an earlier supervisor noted, all at once, also of
// components that are in the graph no more. One that the kernel cannot end holds up
// its own component only: by its cgroup, and by the lock on its data.
func (r *Runner) endLeftovers(ctx context.Context) error {
	names, err := noted(r.cfg.RunDir)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, name := range names {
		ours := slices.ContainsFunc(r.cfg.Specs, func(s Spec) bool { return s.Name == name && !s.Foreign })
		wg.Go(func() { // waited for below
			pid, err := endLeftover(ctx, r.cfg.RunDir, name, r.boot, ours, r.cfg.LeftoverGrace)
			switch {
			case err != nil:
				r.deps.Log.Warn("left-over not ended", logging.Component(name), logging.Err(err))
			case pid != 0:
				r.deps.Log.Warn("left-over ended", logging.Component(name), slog.Int("pid", pid))
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// endTrial ends what a program left that an earlier supervisor tried.
func (r *Runner) endTrial(ctx context.Context) {
	err := os.Remove(filepath.Join(r.cfg.RunDir, TrialSocket))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if r.cfg.Cgroup != "" {
		group := cgroup{filepath.Join(r.cfg.Cgroup, trialGroup)}
		err = errors.Join(err, group.clear(ctx), group.remove())
	}
	if err != nil {
		r.deps.Log.Warn("trial left something", logging.Err(err))
	}
}

// release gives up everything that outlives single children.
func (r *Runner) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{r.store.Close()}
	for _, c := range r.children {
		if c.socket != nil {
			errs = append(errs, c.socket.close())
		}
		if c.tcp != nil {
			errs = append(errs, c.tcp.close())
		}
		if c.pid == 0 {
			errs = append(errs, c.cgroup.remove())
			continue
		}
		if c.leash != nil { // nobody has ended it: the stop came before the loop had begun
			errs = append(errs, c.leash.Close())
			c.leash = nil
		} else {
			errs = append(errs, c.process.Signal(unix.SIGTERM))
		}
	}
	errs = append(errs, r.dropSpares())
	if r.cfg.Cgroup != "" {
		errs = append(errs, cgroup{r.cfg.Cgroup}.removeUnused())
	}
	return errors.Join(errs...)
}

// once tells a lasting trouble the first time only.
func (r *Runner) once(trouble string, tell func()) {
	if _, told := r.told.LoadOrStore(trouble, true); !told {
		tell()
	}
}
