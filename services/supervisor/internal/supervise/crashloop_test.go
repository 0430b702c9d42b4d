package supervise

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/services/supervisor/internal/machine"
)

// crashing are children of which "b" ends 100 ms after each start, until it is mended.
type crashing struct {
	obedient
	mended atomic.Bool
}

func (c *crashing) Start(ctx context.Context, name string) (int, error) {
	pid, err := c.obedient.Start(ctx, name)
	if err == nil && name == "b" && !c.mended.Load() {
		time.AfterFunc(100*time.Millisecond, func() { c.end(name, pid, "exit code 1") })
	}
	return pid, err
}

func (c *crashing) probe(ctx context.Context, name string, pid int, emit func(machine.Event)) error {
	if name == "b" && !c.mended.Load() {
		<-ctx.Done()
		return nil
	}
	return c.obedient.probe(ctx, name, pid, emit)
}

// SUP-9, in its full length: one that ends 100 ms after each start is started at
// most sixty times in five minutes, with gaps that grow from one second at most to a
// minute at most, although somebody has it restarted every 20 s; nobody else is
// touched; and once it is mended it is ready within a minute, by itself.
func TestLoop_SUP9_FiveMinutesOfACrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crashing{}
		l, stop := runWith(t, c, &c.obedient, c.probe, false)
		for range 15 {
			<-time.After(20 * time.Second)
			if err := l.Restart(t.Context(), "b"); err != nil {
				t.Error(err)
			}
		}
		m := l.Table().Members["b"]
		if m.Starts > 60 || m.Starts < 30 { // waits of up to 10 s, and fifteen that were asked for
			t.Errorf("got %d starts in five minutes, want 30 to 60", m.Starts)
		}
		var gaps []time.Duration
		found, _, _ := l.History().After(0)
		for _, e := range found {
			if e.Component == "b" && e.To == machine.BackingOff {
				gaps = append(gaps, e.NextDelay)
			}
		}
		for i := 1; i < len(gaps); i++ { // jitter takes a quarter at most
			if gaps[i] < gaps[i-1]*3/4 || gaps[i] > time.Minute {
				t.Errorf("got gap %s after %s, want growing ones of a minute at most", gaps[i], gaps[i-1])
			}
		}
		if len(gaps) < 10 || gaps[0] > time.Second || gaps[len(gaps)-1] < 5*time.Second {
			t.Errorf("got gaps %v, want the first a second at most, and long ones in the end", gaps)
		}
		if a := l.Table().Members["a"]; a.Starts != 1 || a.State != machine.Ready {
			t.Errorf("got a %s after %d starts, want it untouched", a.State, a.Starts)
		}
		c.mended.Store(true)
		<-time.After(time.Minute)
		synctest.Wait()
		if m := l.Table().Members["b"]; m.State != machine.Ready {
			t.Errorf("got %s a minute after it was mended, want ready", m.State)
		}
		_ = stop() // by its end, which is looked at elsewhere
	})
}
