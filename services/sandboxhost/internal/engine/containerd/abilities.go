package containerd

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/pkg/cap"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/cgroup"
)

// abilities are what this machine can do for a container. All but limitSwap are
// looked up once, at the start.
type abilities struct {
	// limitSwap and weighIO are what the control groups can.
	limitSwap, weighIO bool
	// raise is true when limits may be raised beyond those of the runtime, and an OOM
	// score lowered.
	raise bool
	// hard are our own hard limits, which are the runtime's, by name.
	hard map[string]uint64
	// leastOOMScore is the least that may be set unless raise is true.
	leastOOMScore int
	// capabilities are all that a privileged container can have.
	capabilities []string
	// apparmor is the profile that is loaded, empty without AppArmor.
	apparmor string
	// noAppArmor says what is lacking for it, empty if nothing is.
	noAppArmor string
	// at is when this was looked up.
	at time.Time
}

// rlimitNumbers are the kernel's numbers of limits by their names in the spec.
func rlimitNumbers() map[string]int {
	return map[string]int{
		"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE,
		"locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE,
		"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
		"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
	}
}

// most is how high the hard limit of that name can be.
func (a abilities) most(name string) uint64 {
	if a.raise {
		return math.MaxUint64
	}
	return a.hard[name]
}

// bounded is a limit as far as this machine can give it.
func (a abilities) bounded(name string, soft, hard uint64) specs.POSIXRlimit {
	hard = min(hard, a.most(name))
	return specs.POSIXRlimit{Type: rlimitType(name), Soft: min(soft, hard), Hard: hard}
}

// lookAround finds out what this machine can do. Our own capabilities say nothing of
// it, for we have only the few that we need; those of the first process do: it
// starts the runtime, or what starts that.
func (e *Engine) lookAround(groups *cgroup.Tree) (abilities, error) {
	a := abilities{hard: map[string]uint64{}, at: time.Now()}
	var err error
	if a.weighIO, err = groups.CanWeighIO(e.group()); err != nil {
		return a, err
	}
	for name, number := range rlimitNumbers() {
		var limit unix.Rlimit
		if err := unix.Getrlimit(number, &limit); err != nil {
			return a, fmt.Errorf("read limit %s: %w", name, err)
		}
		a.hard[name] = limit.Max
	}
	status, err := os.ReadFile("/proc/1/status")
	if err != nil {
		return a, fmt.Errorf("read capabilities of the machine: %w", err)
	}
	sets, err := cap.ParseProcPIDStatus(bytes.NewReader(status))
	if err != nil {
		return a, fmt.Errorf("read capabilities of the machine: %w", err)
	}
	a.capabilities, _ = cap.FromBitmap(sets[cap.Bounding])
	a.raise = slices.Contains(a.capabilities, "CAP_SYS_RESOURCE")
	score, err := os.ReadFile("/proc/1/oom_score_adj")
	if err != nil {
		return a, fmt.Errorf("read OOM score of the machine: %w", err)
	}
	if a.leastOOMScore, err = strconv.Atoi(string(bytes.TrimSpace(score))); err != nil {
		return a, fmt.Errorf("read OOM score of the machine: %w", err)
	}
	if a.noAppArmor = e.loadAppArmor(); a.noAppArmor == "" {
		a.apparmor = apparmorProfile
	}
	return a, nil
}

// able is what lookAround found, and whether swap can be limited, which some kernels
// tell only once a group has limits.
func (e *Engine) able() abilities {
	e.mu.Lock()
	a, groups := e.abilities, e.cgroups
	e.mu.Unlock()
	a.limitSwap = groups.CanLimitSwap()
	return a
}

// tellOnce writes down that the machine lacks something that was asked for; more
// than once would say nothing new.
func (e *Engine) tellOnce(what string) {
	e.mu.Lock()
	told := e.told[what]
	e.told[what] = true
	e.mu.Unlock()
	if !told {
		e.log.Warn("wish of container not possible here", logging.Reason(what))
	}
}
