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

// graces are how long each sandbox may take, by the lower case of its uid.
type graces map[string]time.Duration

// of never returns more than limit.
func (g graces) of(uid string, limit time.Duration) time.Duration {
	if own, known := g[uid]; known {
		return min(own, limit)
	}
	return min(unknownGrace, limit)
}

// readGraces never fails: what cannot be read leaves those that nobody knows.
func (d down) readGraces() graces {
	left, err := host.Graces(filepath.Join(d.cfg.Paths.Var("sandboxhost"), host.JournalFile), d.cfg.BootID, boottime.Now())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("grace periods unknown", logging.Err(err))
	}
	return lower(left)
}

func lower(left map[id.Sandbox]time.Duration) graces {
	g := graces{}
	for uid, d := range left {
		g[uid.Lower()] = d
	}
	return g
}

// endWorkloads ends all sandboxes at once, each within its own grace period.
func (d down) endWorkloads(ctx context.Context) error {
	all, err := d.workloads()
	if err != nil || len(all) == 0 {
		return err
	}
	d.log.Info("workloads ending", logging.Count(len(all)))
	known := d.readGraces()
	var wg sync.WaitGroup
	for uid, pids := range all {
		wg.Go(func() { d.endSandbox(ctx, uid, pids, known.of(uid, d.cfg.Limit)) }) // waited for below
	}
	wg.Wait()
	// Those that came meanwhile, and those that stayed.
	return d.killLeft(ctx)
}

// endSandbox sends SIGTERM to every process of a sandbox, waits for the grace and
// ends by force what is left.
func (d down) endSandbox(ctx context.Context, uid string, pids []int, grace time.Duration) {
	began := time.Now()
	procs := openAll(pids)
	defer procs.close()
	procs.signal(unix.SIGTERM)
	ended := procs.wait(ctx, grace)
	if !ended {
		procs.signal(unix.SIGKILL)
	}
	d.log.Info("workload ended", id.Sandbox(strings.ToUpper(uid)).Attr(), logging.Duration(time.Since(began)), logging.Reason(reason(ended)))
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
