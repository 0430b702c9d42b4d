package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/cgroup"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/enginetest"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/permit"
	"staddle.internal/services/sandboxhost/internal/testimage"
	"staddle.internal/services/sandboxhost/internal/testruntime"
)

// waitLimit bounds every wait of these tests.
const waitLimit = 30 * time.Second

// node is one node for a test: a containerd, and an engine that can be ended and
// begun again.
type node struct {
	*testruntime.Runtime

	cfg    Config
	engine *Engine
	end    func()
	mine   map[id.Sandbox]bool // whose traces outside the node's folder count
}

// bridges numbers the bridges of this test process.
var bridges atomic.Uint32

func newNode(t *testing.T) *node {
	t.Helper()
	r := testruntime.Start(t)
	n := bridges.Add(1)
	name := "sdt" + strconv.Itoa(syscall.Getpid()%100000) + "-" + strconv.Itoa(int(n))
	cfg := Config{
		Address: r.Address, Namespace: testruntime.Namespace, State: filepath.Join(r.Dir, "state"), Paths: config.Paths{Root: filepath.Join(r.Dir, "n")},
		CgroupParent: r.Group(), Logs: config.DefaultNode().Logs, Node: "node1",
		Rules:   permit.Rules{HostNetwork: true, SandboxNetwork: true},
		Network: config.Network{Bridge: name, Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, byte(n), 0}), 24)},
	}
	h := &node{Runtime: r, cfg: cfg, mine: map[id.Sandbox]bool{}}
	h.begin(t)
	t.Cleanup(func() { h.tearDown(t) })
	return h
}

// begin starts an engine and waits until it is ready.
func (n *node) begin(t *testing.T) *Engine {
	t.Helper()
	e := New(n.cfg, Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), FDs: &fdstore.Store{}})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- e.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("engine ended: %v", err)
	case <-time.After(waitLimit):
		stacks := make([]byte, 1<<20)
		t.Fatalf("engine is not ready:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	n.engine = e
	n.end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("engine ended: %v", err)
		}
		n.end = func() {}
	}
	return e
}

// tearDown removes all that belongs to the node, which must work once its
// sandboxes are gone.
func (n *node) tearDown(t *testing.T) {
	n.Up(t)
	if n.engine == nil {
		return
	}
	n.removeAll(t)
	n.end()
	e := New(n.cfg, Deps{Log: slog.New(slog.DiscardHandler), FDs: &fdstore.Store{}})
	if err := e.takeDown(context.Background()); err != nil {
		t.Errorf("tear down: %v", err)
	}
}

// removeAll removes what a test that failed has left.
func (n *node) removeAll(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	uids, err := n.engine.Survivors(ctx)
	if err != nil {
		t.Errorf("list survivors: %v", err)
	}
	for _, uid := range uids {
		if !t.Failed() {
			t.Errorf("sandbox %s is left", uid)
		}
		if err := n.removeOne(ctx, uid); err != nil {
			t.Errorf("remove sandbox %s: %v", uid, err)
		}
	}
}

func (n *node) removeOne(ctx context.Context, uid id.Sandbox) error {
	o, err := n.engine.Observe(ctx, uid)
	if err != nil {
		return err
	}
	for _, c := range o.Containers {
		err := errors.Join(n.engine.signal(ctx, c.ID, syscall.SIGKILL), n.engine.remove(ctx, c.ID))
		for err != nil && ctx.Err() == nil { // it has not ended yet
			err = errors.Join(n.engine.signal(ctx, c.ID, syscall.SIGKILL), n.engine.remove(ctx, c.ID))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(n.engine.release(uid), n.engine.removeWritten(uid, logs.Name{Manager: "local", Name: "web"}))
}

// silence stops the shim of a sandbox, or lets it go on.
func (n *node) silence(t *testing.T, uid id.Sandbox, silent bool) {
	t.Helper()
	sig, found := syscall.SIGCONT, false
	if silent {
		sig = syscall.SIGSTOP
	}
	for _, pid := range n.Shims(t) {
		if !n.engine.isShimOf(pid, uid) {
			continue
		}
		found = true
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if !found {
		t.Fatalf("sandbox %s has no shim", uid)
	}
}

// ignoresTerm says whether a process ignores SIGTERM, which is a bit of a line of its
// status (proc_pid_status(5)).
func ignoresTerm(pid uint32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(status), "SigIgn:\t")
	text, _, _ := strings.Cut(after, "\n")
	ignored, err := strconv.ParseUint(text, 16, 64)
	return err == nil && ignored&(1<<(syscall.SIGTERM-1)) != 0
}

func TestEngine_Conformance(t *testing.T) {
	host := testimage.Serve(t)
	img := testimage.New(t)
	ref := host + "/test/prog:1"
	testimage.Push(t, ref, img)
	fixture := enginetest.Fixture{
		Image: ref, Missing: host + "/test/none:1",
		Sleep:      []string{testimage.Program, "sleep"},
		IgnoreTerm: []string{testimage.Program, "ignore-term"},
		Ignores:    ignoresTerm,
		Exit:       func(code int) []string { return []string{testimage.Program, "exit", strconv.Itoa(code)} },
		Absent:     []string{"/no/such/program"},
		Hang:       []string{testimage.Program, "family"},
		Network:    true,
	}
	enginetest.Run(t, fixture, func(t *testing.T) *enginetest.Control {
		n := newNode(t)
		return &enginetest.Control{
			Engine: n.engine,
			Restart: func(t *testing.T, meanwhile func()) engine.Engine {
				n.end()
				meanwhile()
				return n.begin(t)
			},
			Silence: n.silence,
			End: func(t *testing.T, c engine.Container, signal syscall.Signal) {
				if err := syscall.Kill(int(c.PID), signal); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// takeDown removes what belongs to the node and not to a sandbox: bridge, rules,
// folder of namespaces, empty control groups. Sandboxes must be removed before.
func (e *Engine) takeDown(ctx context.Context) (err error) {
	if left, err := e.pins.Sandboxes(); err != nil || len(left) > 0 {
		if err != nil {
			return err
		}
		return fault.New(fault.Conflict, "take down node: %d sandboxes are left; remove them first", len(left))
	}
	if !e.cfg.Network.Disable {
		if err := e.teardownNetwork(ctx); err != nil {
			return err
		}
	}
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Remove(e.group()); err != nil {
		return err
	}
	return e.pins.Close()
}

func (e *Engine) teardownNetwork(ctx context.Context) error {
	if err := e.network.Load(); err != nil {
		return err
	}
	err := e.network.Teardown(ctx)
	if closeErr := e.network.Close(); closeErr != nil && err == nil {
		err = fmt.Errorf("close ledger of addresses: %w", closeErr)
	}
	return err
}
