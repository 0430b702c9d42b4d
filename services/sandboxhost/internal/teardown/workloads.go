package teardown

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/host"
)

const (
	// unknownGrace is for a workload of which nobody knows how long it may take: as
	// long as one whose spec says nothing.
	unknownGrace = 10 * time.Second
	// killLimit is what the end of a killed process may take.
	killLimit = 5 * time.Second
)

// endings are how each sandbox is ended, by the lower case of its uid.
type endings map[string]host.Ending

// of is for a sandbox that nobody knows as well.
func (e endings) of(uid string) host.Ending {
	if known, ok := e[uid]; ok {
		return known
	}
	return host.Ending{Grace: unknownGrace}
}

// readEndings never fails: what cannot be read leaves those that nobody knows.
func (d down) readEndings() endings {
	known, err := host.Endings(filepath.Join(d.cfg.Paths.Var("sandboxhost"), host.JournalFile), d.cfg.BootID, boottime.Now())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("grace periods unknown", logging.Err(err))
	}
	return lower(known)
}

func lower(known map[id.Sandbox]host.Ending) endings {
	e := endings{}
	for uid, one := range known {
		e[uid.Lower()] = one
	}
	return e
}

// endWorkloads ends all sandboxes at once, each within its own grace period.
func (d down) endWorkloads(ctx context.Context) error {
	all, err := d.workloads()
	if err != nil || len(all) == 0 {
		return err
	}
	d.log.Info("workloads ending", logging.Count(len(all)))
	known := d.readEndings()
	var wg sync.WaitGroup
	for uid, pids := range all {
		wg.Go(func() { d.endSandbox(ctx, uid, pids, known.of(uid)) }) // waited for below
	}
	wg.Wait()
	// Those that came meanwhile, and those that stayed.
	return d.killLeft(ctx)
}

// endSandbox ends the containers of a sandbox in their order, each after the one before,
// and then what else there is of it. It never takes longer than the limit.
func (d down) endSandbox(ctx context.Context, uid string, pids []int, how host.Ending) {
	began := time.Now()
	last := began.Add(d.cfg.Limit)
	whole := earlier(began.Add(how.Grace), last)
	ended := true
	for _, c := range how.Containers {
		members, err := d.groups.Processes(filepath.Join(d.cfg.Node.Sandboxes.CgroupParent, uid, c.Name))
		if err != nil {
			d.log.Warn("processes unknown", logging.Component(c.Name), logging.Err(err))
		}
		members = slices.DeleteFunc(members, func(pid int) bool { return !slices.Contains(pids, pid) }) // shims are not ours
		until := whole
		if c.HasOwn {
			until = earlier(time.Now().Add(c.Own), last)
		}
		if c.PreStop != nil && len(members) > 0 {
			d.preStop(ctx, c, until)
		}
		ended = end(ctx, members, c.Signal, until) && ended
		pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(members, pid) })
	}
	ended = end(ctx, pids, unix.SIGTERM, whole) && ended
	d.log.Info("workload ended", id.Sandbox(strings.ToUpper(uid)).Attr(), logging.Duration(time.Since(began)), logging.Reason(reason(ended)))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// end asks processes to end, waits for that, and ends by force what is left then. In a
// container it is the main process that is asked: the others end with it.
func end(ctx context.Context, pids []int, s unix.Signal, until time.Time) (byThemselves bool) {
	procs := openAll(pids)
	defer procs.close()
	asked := openAll(mainProcesses(pids))
	defer asked.close()
	if len(asked) == 0 {
		procs.signal(s)
	}
	asked.signal(s)
	if procs.wait(ctx, time.Until(until)) {
		return true
	}
	procs.signal(unix.SIGKILL)
	return false
}

func reason(ended bool) string {
	if ended {
		return "by itself"
	}
	return "killed after its grace"
}

func (d down) killLeft(ctx context.Context) error {
	all, err := d.workloads()
	if err != nil {
		return err
	}
	var pids []int
	for _, some := range all {
		pids = append(pids, some...)
	}
	late := openAll(pids)
	defer late.close()
	late.signal(unix.SIGKILL)
	if !late.wait(ctx, killLimit) {
		return fault.New(fault.Unavailable, "end workloads: some do not end, not even by SIGKILL")
	}
	return nil
}

// workloads are the processes in the cgroups of sandboxes, by the name of the group,
// which is the sandbox's uid; what is in none of them is under an empty name. Shims are
// known by theirs, not by their name: a workload may call itself what it likes.
func (d down) workloads() (map[string][]int, error) {
	parent := d.cfg.Node.Sandboxes.CgroupParent
	rest, err := d.groups.Processes(parent)
	if err != nil {
		return nil, err
	}
	names, err := d.groups.Children(parent)
	if err != nil {
		return nil, err
	}
	// Shims first: what is in their group in one hierarchy is one, wherever else it is.
	slices.SortStableFunc(names, func(a, b string) int { return order(a) - order(b) })
	all := map[string][]int{}
	for _, name := range names {
		pids, err := d.groups.Processes(filepath.Join(parent, name))
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			if i, found := slices.BinarySearch(rest, pid); found {
				rest = slices.Delete(rest, i, i+1)
				all[name] = append(all[name], pid)
			}
		}
	}
	if len(rest) > 0 {
		all[""] = rest
	}
	delete(all, engine.ShimGroup)
	return all, nil
}

func order(group string) int {
	if group == engine.ShimGroup {
		return 0
	}
	return 1
}
