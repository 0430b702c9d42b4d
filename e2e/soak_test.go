package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/e2e/bed"
)

// How long a soak is, and which one. "make soak" runs the long form.
var (
	soakCycles = flag.Int("soak", 12, "how many sandboxes TestSoak lets come and go")
	soakSeed   = flag.Uint64("soak-seed", 0, "what TestSoak chooses by; 0 takes one from the clock")
)

// soakAtOnce is how many sandboxes come and go at a time.
const soakAtOnce = 4

// killCredit is how many kills may come before a sandbox has come and gone.
const killCredit = 8

// soakVictims are the processes that are killed: all there are. The supervisor takes
// all others with it.
var soakVictims = []string{
	"sandboxhost", "sandboxhost", "sandboxhost", "containerd", "containerd", "coordinator", "clusteraccess",
	"storage", "storage-agent", "sandbox-agent", "presence", "supervisor",
}

// Sandboxes come and go, several at once, while every process of the machine is
// killed at random moments. In the end there is exactly what there was before: tasks,
// shims, snapshots, leases, namespaces, mounts, cgroups, FIFOs, sockets, open files and
// goroutines.
func TestSoak_LIF2_NothingLeaks(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d cycles", seed, *soakCycles)
	b, supervisor := machine(t, bed.Options{Supervisor: "  backoff: {initial: 20ms, cap: 200ms}"})
	k := newKiller(b, supervisor, seed, soakVictims)
	comeAndGo(t, b, -2)  // the first one leaves what is kept for the others
	k.kill("supervisor") // so that before and after are both of processes that found something
	b.WaitReady()
	comeAndGo(t, b, -1)
	before := stillStock(t, b, nil)

	ctx, stop := context.WithCancel(t.Context())
	var kills sync.WaitGroup
	kills.Go(func() { k.run(ctx) })
	var work sync.WaitGroup
	slots := make(chan struct{}, soakAtOnce)
	for i := range *soakCycles {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			comeAndGo(t, b, i)
			k.finished()
		})
	}
	work.Wait()
	stop()
	kills.Wait()
	t.Logf("%d kills: %v", len(k.killed), k.killed)
	k.kill("supervisor")
	b.WaitReady()
	comeAndGo(t, b, *soakCycles)
	settled(t, b)
	stillStock(t, b, before)
	wantFindings(t, "in the end", examine(t, b), "", nil)
}

// killer ends processes at random moments.
type killer struct {
	b          *bed.Bed
	supervisor *os.Process
	victims    []string
	random     *rand.Rand
	killed     []string
	turns      chan struct{} // a kill takes one, a sandbox that has gone gives some back
}

// newKiller returns one that chooses by a seed among victims. The supervisor is needed
// only if it is one of them.
func newKiller(b *bed.Bed, supervisor *os.Process, seed uint64, victims []string) *killer {
	k := &killer{b: b, supervisor: supervisor, victims: victims, random: rand.New(rand.NewPCG(seed, 0)), turns: make(chan struct{}, killCredit)}
	for range killCredit {
		k.turns <- struct{}{}
	}
	return k
}

// run kills until ctx ends. Before each kill all are ready, so that the others get on.
func (k *killer) run(ctx context.Context) {
	for {
		k.b.WaitComponents()
		select {
		case <-k.turns:
		case <-ctx.Done():
			return
		}
		timer := time.NewTimer(time.Duration(k.random.IntN(1500)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		victim := k.victims[k.random.IntN(len(k.victims))]
		k.killed = append(k.killed, victim)
		k.kill(victim)
	}
}

// finished lets more be killed: on a machine that is slow sandboxes would else never
// come up between two kills.
func (k *killer) finished() {
	for range 2 {
		select {
		case k.turns <- struct{}{}:
		default: // there are enough
		}
	}
}

func (k *killer) kill(victim string) {
	if victim != "supervisor" {
		k.b.Kill(victim)
		return
	}
	k.b.KillSupervisor(k.supervisor)
	k.supervisor = k.b.Start()
}

// stillStock takes stock of all there is once it stays as it is; with want, once it is that.
func stillStock(t *testing.T, b *bed.Bed, want []string) []string {
	t.Helper()
	var last []string
	defer func() {
		if t.Failed() {
			showGoroutines(b, want, last)
		}
	}()
	bed.Eventually(t, 2*time.Minute, "there is what there was before", func(ctx context.Context) (bool, string) {
		now, err := b.Stock(ctx)
		if err != nil {
			return false, err.Error()
		}
		same, moved := slices.Equal(now, last), changed(last, now)
		last = now
		if want == nil {
			return same, "it changes: " + moved
		}
		return same && slices.Equal(now, want), changed(want, now)
	})
	return last
}

// showGoroutines shows those of the processes that have more or fewer than they had.
func showGoroutines(b *bed.Bed, before, after []string) {
	for _, s := range after {
		name, _, found := strings.Cut(strings.TrimPrefix(s, bed.GoroutinesOf), ":")
		if found && strings.HasPrefix(s, bed.GoroutinesOf) && !slices.Contains(before, s) {
			b.ShowGoroutines(name)
		}
	}
}

// changed says what of two lists is in one alone.
func changed(before, after []string) string {
	var out []string
	count := map[string]int{}
	for _, s := range before {
		count[s]--
	}
	for _, s := range after {
		count[s]++
	}
	for s, n := range count {
		if n != 0 {
			out = append(out, fmt.Sprintf("%+d %s", n, s))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
