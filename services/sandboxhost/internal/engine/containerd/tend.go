package containerd

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// tendPeriod is how often somebody looks whether network and shims still are as they
// should be: nobody is told by whom a firewall is loaded anew or a process stopped.
const tendPeriod = 10 * time.Second

// tend mends what all sandboxes stand on, from the adoption on until ctx ends, and has
// the keepers of those look that lost their interface or a pin, or whose shim stands still.
func (e *Engine) tend(ctx context.Context, adopted <-chan struct{}) {
	select {
	case <-adopted:
	case <-ctx.Done():
		return
	}
	network := sayer{warn: func(err error) { e.log.Warn("network not mended", logging.Err(err)) }}
	shims := sayer{warn: func(err error) { e.log.Warn("shims not looked at", logging.Err(err)) }}
	pins := sayer{warn: func(err error) { e.log.Warn("pins not looked at", logging.Err(err)) }}
	still, unpinned := map[int]id.Sandbox{}, map[id.Sandbox]bool{}
	for backoff.Wait(ctx, tendPeriod) == nil {
		network.say(ctx, e.Mend(ctx))
		now, err := e.standingShims()
		shims.say(ctx, err)
		for pid, uid := range now {
			if still[pid] != uid {
				e.hints.one(uid)
			}
		}
		if err == nil {
			still = now
		}
		lost, err := e.unpinned()
		pins.say(ctx, err)
		for uid := range lost {
			if !unpinned[uid] {
				e.hints.one(uid)
			}
		}
		if err == nil {
			unpinned = lost
		}
	}
}

// learn keeps interfaces that come learning their routers, from the adoption on until ctx ends.
func (e *Engine) learn(ctx context.Context, adopted <-chan struct{}) {
	select {
	case <-adopted:
	case <-ctx.Done():
		return
	}
	if !e.cfg.Network.Disable {
		e.network.KeepLearning(ctx)
	}
}

// unpinned lists the sandboxes that have containers and lost a pin, or their shared
// memory. Namespaces are made before containers, and go after them.
func (e *Engine) unpinned() (map[id.Sandbox]bool, error) {
	e.mu.Lock()
	with := map[id.Sandbox]bool{}
	for _, c := range e.containers {
		with[c.uid] = true
	}
	e.mu.Unlock()
	for uid := range with {
		whole, err := e.pinned(uid)
		if err != nil {
			return nil, err
		}
		if whole {
			delete(with, uid)
		}
	}
	return with, nil
}

// standingShims lists the shims that somebody has stopped, with their sandboxes.
func (e *Engine) standingShims() (map[int]id.Sandbox, error) {
	pids, err := e.shims()
	if err != nil {
		return nil, err
	}
	still := map[int]id.Sandbox{}
	for _, pid := range pids {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || !isStopped(raw) {
			continue // it ended, or goes on
		}
		if uid, ok := e.shimOf(pid); ok {
			still[pid] = uid
		}
	}
	return still, nil
}

// isStopped reads from /proc/<pid>/stat whether a process was stopped.
func isStopped(stat []byte) bool {
	after := stat[bytes.LastIndexByte(stat, ')')+1:] // its name may hold anything
	state := strings.TrimSpace(string(after))
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}

// sayer warns of what is wrong, once as long as it stays the same.
type sayer struct {
	warn func(error)
	said string
}

func (s *sayer) say(ctx context.Context, err error) {
	switch {
	case err == nil:
		s.said = ""
	case err.Error() != s.said && ctx.Err() == nil:
		s.said = err.Error()
		s.warn(err)
	}
}
