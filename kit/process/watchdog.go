package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
)

// The variables by which systemd asks for signs of life.
const (
	envWatchdog    = "WATCHDOG_USEC"
	envWatchdogPID = "WATCHDOG_PID"
)

const (
	// StuckAfter is how long a loop may make no progress. A process with one that
	// makes none writes down what all its goroutines do and ends with exit code 1:
	// whoever supervises, or the next start, does the rest.
	StuckAfter = 30 * time.Second
	// lookPeriod is how often the loops are looked at where systemd asks for nothing.
	lookPeriod = StuckAfter / 6
	// maxStacks bounds what is written down.
	maxStacks = 4 << 20
)

// Watchdog notices that a process lives but does nothing. Where systemd asks for
// signs of life it gives them while the process's own socket answers health, which
// is the question that a supervisor of ours asks as well, and while every loop
// that registered makes progress. Without systemd only the loops are watched.
type Watchdog struct {
	process  *Process
	asked    time.Duration // for a sign of life at least so often; 0: nobody asks
	problem  error         // with what asks
	progress progress

	stuckAfter time.Duration
	stuck      func(loop string)
}

// Beat is one loop's word that it makes progress. It counts from its first sign on.
type Beat struct {
	name   string
	count  atomic.Uint64
	over   atomic.Bool
	last   uint64        // as it was last seen
	silent time.Duration // how long it has been the same
}

// Alive says that the loop has turned. It must come more often than StuckAfter,
// also while there is nothing to do.
func (b *Beat) Alive() { b.count.Add(1) }

// Done says that the loop has ended, as it should.
func (b *Beat) Done() { b.over.Store(true) }

// progress is what is known of all loops.
type progress struct {
	mu    sync.Mutex // guards beats, and of each what is not atomic
	beats []*Beat
}

// Loop registers a loop, before the members run.
func (w *Watchdog) Loop(name string) *Beat {
	w.progress.mu.Lock()
	defer w.progress.mu.Unlock()
	b := &Beat{name: name}
	w.progress.beats = append(w.progress.beats, b)
	return b
}

// after returns the name of a loop that has been silent for limit, when another
// period has passed, or "". It counts periods and reads no clock: a process
// that was stopped as a whole, or slept with the machine, is not to blame.
func (p *progress) after(period, limit time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.beats {
		now := b.count.Load()
		if now != b.last || now == 0 || b.over.Load() {
			b.last, b.silent = now, 0
			continue
		}
		b.silent += period
		if b.silent >= limit {
			return b.name
		}
	}
	return ""
}

// newWatchdog reads what systemd asks for, and clears it so that no child takes
// it for its own.
func newWatchdog(p *Process) *Watchdog {
	w := &Watchdog{process: p, stuckAfter: StuckAfter, stuck: dumpAndEnd(os.Stderr)}
	w.asked, w.problem = askedFor(os.Getpid(), os.Getenv)
	for _, key := range []string{envWatchdog, envWatchdogPID} {
		w.problem = errors.Join(w.problem, os.Unsetenv(key))
	}
	return w
}

// askedFor returns how often a sign of life is asked of process pid, 0 for never.
func askedFor(pid int, getenv func(string) string) (time.Duration, error) {
	text := getenv(envWatchdog)
	if of := getenv(envWatchdogPID); text == "" || of != "" && of != strconv.Itoa(pid) {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return 0, fault.New(fault.Invalid, "read %s: %q is no number of microseconds up to a day", envWatchdog, text)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// period is how often it looks: three times while systemd waits once.
func (w *Watchdog) period() time.Duration {
	if w.asked > 0 {
		return w.asked / 3
	}
	return lookPeriod
}

func (w *Watchdog) member() run.Member {
	return run.Member{Name: "watchdog", Run: func(ctx context.Context, ready func()) error {
		if w.problem != nil {
			w.process.Log.Warn("watchdog not fed", logging.Err(w.problem))
		}
		ready()
		if w.asked == 0 && len(w.progress.beats) == 0 {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return w.watch(ctx)
	}}
}

func (w *Watchdog) watch(ctx context.Context) error {
	conn, err := rpc.Dial(w.process.Paths.Socket(w.process.Name), rpc.DialConfig{Process: w.process.Name})
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(w.period())
	defer tick.Stop()
	for {
		if err := w.feed(ctx, conn); err != nil && ctx.Err() == nil {
			w.process.Log.Warn("watchdog not fed", logging.Err(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if loop := w.progress.after(w.period(), w.stuckAfter); loop != "" {
			w.stuck(loop)
		}
	}
}

// feed gives a sign of life if one is asked for and there is one.
func (w *Watchdog) feed(ctx context.Context, conn *grpc.ClientConn) error {
	if w.asked == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.period())
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if kind := fault.KindOf(err); err != nil && (kind == fault.Unavailable || ctx.Err() != nil) {
		return fmt.Errorf("ask own health: %w", err) // any other answer is one
	}
	return w.process.FDs.Notify("WATCHDOG=1")
}

// stacks is what all goroutines do, cut at maxStacks. It does without the package
// pprof: a program that has that one keeps records of where it got its memory.
func stacks() []byte {
	buf := make([]byte, maxStacks)
	return buf[:runtime.Stack(buf, true)]
}

// dumpAndEnd ends the process as one that is stuck.
func dumpAndEnd(out io.Writer) func(string) {
	return func(loop string) {
		fmt.Fprintf(out, "watchdog: loop %s made no progress for too long; all goroutines:\n", loop)
		_, _ = out.Write(stacks()) // it ends in any case
		os.Exit(run.ExitFailed)
	}
}
