package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/watch"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
	"staddle.internal/services/sandboxhost/internal/host"
	"staddle.internal/services/sandboxhost/internal/permit"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// node is a machine whose host can be killed and started again: engine, journal
// file and clock outlive it.
type node struct {
	t      *testing.T
	path   string
	engine *mem.Engine
	boot   string
	booted time.Time
	reason chan string
	full   atomic.Bool  // the disk that the journal lies on
	looked atomic.Int64 // how often a sandbox was observed

	secrets host.Secrets // nil if there are none

	host    *host.Host
	journal *journal.Journal
	cancel  context.CancelFunc
	ended   chan error
}

func newNode(t *testing.T) *node {
	return &node{
		t:      t,
		path:   filepath.Join(t.TempDir(), "journal.db"),
		engine: mem.New(),
		boot:   "boot-1",
		booted: time.Now().Add(-time.Hour),
		reason: make(chan string, 1),
	}
}

// disk is a journal that cannot be written while its disk is full.
type disk struct {
	*journal.Journal
	full *atomic.Bool
}

// Update changes the journal, or says that the disk is full.
func (d disk) Update(fn func(tx journal.Tx) error) error {
	if d.full.Load() {
		return fault.New(fault.Exhausted, "no space left on device")
	}
	return d.Journal.Update(fn)
}

// counted is an engine that counts how often it is asked how a sandbox is.
type counted struct {
	engine.Engine
	looked *atomic.Int64
}

// Observe tells how a sandbox is.
func (c counted) Observe(ctx context.Context, uid id.Sandbox) (engine.Observed, error) {
	c.looked.Add(1)
	return c.Engine.Observe(ctx, uid)
}

// begin starts a host without waiting for it. It returns what ready closes.
func (n *node) begin() chan struct{} {
	n.t.Helper()
	j, _, err := journal.Open(journal.Options{Path: n.path, Kind: host.JournalKind, Version: host.JournalVersion})
	if err != nil {
		n.t.Fatal(err)
	}
	n.journal = j
	n.host = host.New(
		host.Config{Node: "node1", BootID: n.boot, Folder: filepath.Dir(n.path), Rules: permit.Rules{SandboxNetwork: true}, BootHold: 15 * time.Second, Limit: 5},
		host.Deps{
			Engine: counted{n.engine, &n.looked}, Journal: disk{j, &n.full}, Log: slog.New(slog.DiscardHandler), Secrets: n.secrets,
			Now: func() time.Duration { return time.Since(n.booted) },
			NotReady: func(reason string) {
				select {
				case n.reason <- reason:
				default:
				}
			},
		})
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() { n.ended <- n.host.Run(ctx, func() { close(ready) }) }() // kill waits for it
	return ready
}

func (n *node) start() {
	n.t.Helper()
	ready := n.begin()
	select {
	case <-ready:
	case err := <-n.ended:
		n.t.Fatalf("host ended: %v", err)
	case <-time.After(time.Minute):
		n.t.Fatal("host not ready after a minute")
	}
}

// kill ends the host. Whatever it was doing is cut off.
func (n *node) kill() {
	n.t.Helper()
	n.cancel()
	if err := <-n.ended; !errors.Is(err, context.Canceled) {
		n.t.Fatalf("host ended: %v", err)
	}
	if err := n.journal.Close(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) reboot() {
	n.kill()
	n.engine.Reboot()
	n.boot += "+"
	n.booted = time.Now()
}

func (n *node) ensure(w *sandboxhostv1.Wish) {
	n.t.Helper()
	if _, err := n.host.Ensure(n.t.Context(), w); err != nil {
		n.t.Fatalf("ensure: %v", err)
	}
}

type state = *sandboxhostv1.SandboxState

// await waits until a sandbox is as asked, a minute of fake time at most.
func (n *node) await(uid string, what string, is func(state) bool) state {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := watch.Await(ctx, n.host.States(), id.Sandbox(uid), is)
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
	return s
}

func (n *node) awaitPhase(uid string, phase resourcev1.SandboxPhase, attempt uint64) state {
	n.t.Helper()
	return n.await(uid, fmt.Sprintf("attempt %d %v", attempt, phase), func(s state) bool {
		return s.GetStatus().GetPhase() == phase && s.GetStatus().GetAttempt() == attempt
	})
}

const (
	running  = resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	pending  = resourcev1.SandboxPhase_SANDBOX_PHASE_PENDING
	stopping = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING
	stopped  = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	failed   = resourcev1.SandboxPhase_SANDBOX_PHASE_FAILED
)

func wishFor(manager string, commands ...string) *sandboxhostv1.Wish {
	w := &sandboxhostv1.Wish{
		Uid: string(id.NewSandbox()), Name: "web", Manager: manager, Generation: 1,
		Spec: &resourcev1.SandboxSpec{Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING},
	}
	for i, c := range commands {
		w.Spec.Containers = append(w.Spec.Containers, &resourcev1.ContainerSpec{
			Name: string(rune('a' + i)), Image: mem.Image, Command: strings.Fields(c),
		})
	}
	return w
}

func (n *node) observe(uid string) engine.Observed {
	n.t.Helper()
	o, err := n.engine.Observe(context.Background(), id.Sandbox(uid))
	if err != nil {
		n.t.Fatal(err)
	}
	return o
}

// startedOnce demands that no container was started twice, and returns how many
// were.
func (n *node) startedOnce() int {
	n.t.Helper()
	for container, times := range n.engine.Starts() {
		if times != 1 {
			n.t.Errorf("container %s was started %d times, want once", container, times)
		}
	}
	return len(n.engine.Starts())
}

// inBubble runs f with fake time and a started node.
func inBubble(t *testing.T, f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		f(n)
		n.kill()
	})
}

// refuse lets a step fail in a way that may pass.
func (n *node) refuse(step engine.Step, why string) {
	n.engine.Before = func(_ context.Context, _ id.Sandbox, a engine.Action) error {
		if a.Step == step {
			return fault.New(fault.Unavailable, "%s", why)
		}
		return nil
	}
}
