// Package mem is an engine that only remembers: containers without processes,
// for tests of everything above the engine.
//
// It behaves as engine.Engine promises, passes the same conformance suite as the
// real one, and can be told to fail, to block, and to end containers. What it
// holds outlives a host, as the kernel's objects do. It must never be wired into
// a node. In the trail it stands in the place of internal/engine/containerd.
package mem

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/inventory"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Image is the only image that exists.
const Image = "example.org/test:1"

// Commands that a container of Image understands; any other command runs until
// it is signalled.
const (
	CommandExit       = "exit"        // ends at once with the code in the next word
	CommandIgnoreTerm = "ignore-term" // ends by SIGKILL only
	CommandPrint      = "print"       // writes something and ends
	CommandAbsent     = "absent"      // is not in the image
	CommandHang       = "hang"        // as a command beside the container: never ends by itself
)

// Engine is the engine. The zero value is not usable; call New.
type Engine struct {
	// Before, if set before use, is called at the start of every Do, outside of
	// locks; what it returns is the result, and nothing is done, if not nil.
	Before func(ctx context.Context, uid id.Sandbox, a engine.Action) error
	// After is called when a Do was successful; its error is returned although
	// all is done.
	After func(ctx context.Context, uid id.Sandbox, a engine.Action) error

	// OnExec, if set before use, is what Exec does.
	OnExec func(ctx context.Context, cmd engine.Command) (engine.CommandResult, error)

	changes chan id.Sandbox

	mu        sync.Mutex // guards all below
	sandboxes map[id.Sandbox]*sandbox
	deaf      error // what questions are answered with
	starts    map[string]int
	preStops  map[string]int
	listeners []engine.Listener
	litter    []inventory.Object
	nextPID   uint32
	nextIP    netip.Addr
}

type sandbox struct {
	pinned     bool
	address    netip.Addr
	remains    bool
	logs       bool
	silent     bool
	containers map[string]*container
}

type container struct {
	engine.Container
	command []string
	unseen  *engine.Exit // how it ended while nobody could tell
	limits  *resourcev1.ResourceLimits
}

// New returns an engine without any sandbox.
func New() *Engine {
	return &Engine{
		changes:   make(chan id.Sandbox, 256),
		sandboxes: make(map[id.Sandbox]*sandbox),
		starts:    make(map[string]int),
		preStops:  make(map[string]int),
		nextPID:   1000,
		nextIP:    netip.AddrFrom4([4]byte{10, 77, 0, 2}),
	}
}

// Survivors implements engine.Engine.
func (e *Engine) Survivors(context.Context) ([]id.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return nil, e.deaf
	}
	var uids []id.Sandbox
	for uid, s := range e.sandboxes {
		if o := s.observe(uid); !o.Empty() || o.Logs {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// Observe implements engine.Engine.
func (e *Engine) Observe(_ context.Context, uid id.Sandbox) (engine.Observed, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return engine.Observed{}, e.deaf
	}
	return e.sandbox(uid).observe(uid), nil
}

// Changes implements engine.Engine.
func (e *Engine) Changes() <-chan id.Sandbox { return e.changes }

// Do implements engine.Engine.
func (e *Engine) Do(ctx context.Context, a engine.Attempt, action engine.Action) error {
	uid := id.Sandbox(a.Wish.GetUid())
	if e.Before != nil {
		if err := e.Before(ctx, uid, action); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if action.Step == engine.StepPreStop {
		if err := e.preStop(ctx, uid, action.ContainerID); err != nil {
			return err
		}
	} else if err := e.do(uid, a, action); err != nil {
		return err
	}
	if e.After != nil {
		return e.After(ctx, uid, action)
	}
	return nil
}

func (e *Engine) do(uid id.Sandbox, a engine.Attempt, action engine.Action) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sandbox(uid)
	if s.silent && asksShim(action.Step) && len(s.containers) > 0 {
		return fault.New(fault.Unavailable, "step %s: the shim does not answer", action.Step)
	}
	switch action.Step {
	case engine.StepImages:
		return checkImages(a.Wish.GetSpec())
	case engine.StepNamespaces:
		s.pinned, s.remains = true, true
		return nil
	case engine.StepNetwork:
		if !s.address.IsValid() {
			s.address, e.nextIP = e.nextIP, e.nextIP.Next()
		}
		return nil
	case engine.StepCreate:
		return s.create(uid, a, action.Container)
	case engine.StepStart:
		return e.start(uid, s, engine.ContainerID(uid, action.Container, a.Number))
	case engine.StepLimits:
		s.limit(a, action)
		return nil
	case engine.StepSignal:
		e.signal(uid, s.containers[action.ContainerID], action.Signal)
		return nil
	case engine.StepDelete:
		return s.remove(action.ContainerID)
	case engine.StepEndShim:
		e.endShim(uid, s)
		return nil
	case engine.StepRelease:
		return s.release()
	case engine.StepLogs:
		s.logs = false
		return nil
	}
	return fault.New(fault.Invalid, "step %s: is unknown", action.Step)
}

func checkImages(spec *resourcev1.SandboxSpec) error {
	for _, c := range spec.GetContainers() {
		if c.GetImage() != Image {
			return fault.New(fault.NotFound, "image %s: is not there", c.GetImage())
		}
	}
	return nil
}

// sandbox returns what there is of a sandbox, and makes room for it.
func (e *Engine) sandbox(uid id.Sandbox) *sandbox {
	s := e.sandboxes[uid]
	if s == nil {
		s = &sandbox{containers: make(map[string]*container)}
		e.sandboxes[uid] = s
	}
	return s
}

func (s *sandbox) observe(uid id.Sandbox) engine.Observed {
	o := engine.Observed{UID: uid, Namespaces: s.pinned, Remains: s.remains, Logs: s.logs, Silent: s.silent && len(s.containers) > 0}
	if s.address.IsValid() {
		o.Addresses = []netip.Addr{s.address}
	}
	for _, key := range slices.Sorted(maps.Keys(s.containers)) {
		o.Containers = append(o.Containers, s.containers[key].Container)
	}
	return o
}

func (s *sandbox) create(uid id.Sandbox, a engine.Attempt, name string) error {
	key := engine.ContainerID(uid, name, a.Number)
	if c := s.containers[key]; c != nil && c.State == engine.Running {
		return fault.New(fault.Conflict, "container %s: runs", key)
	}
	if !s.pinned {
		return fault.New(fault.Conflict, "container %s: namespaces are not pinned", key)
	}
	for _, spec := range a.Wish.GetSpec().GetContainers() {
		if spec.GetName() == name {
			note := &sandboxhostv1.ContainerNote{
				Format: 1, Wish: a.Wish, Attempt: a.Number, Container: name, SpecHash: a.SpecHash,
				StopSignal: uint32(engine.ChooseStopSignal(spec, "")),
			}
			s.containers[key] = &container{
				Container: engine.Container{ID: key, Note: note, State: engine.Created, Task: true},
				limits:    spec.GetLimits(),
				command:   spec.GetCommand(),
			}
			return nil
		}
	}
	return fault.New(fault.Invalid, "container %s: is not in the spec", name)
}

func (e *Engine) start(uid id.Sandbox, s *sandbox, key string) error {
	c := s.containers[key]
	switch {
	case c == nil:
		return fault.New(fault.Conflict, "container %s: was not created", key)
	case c.State != engine.Created:
		return nil
	}
	if len(c.command) > 0 && c.command[0] == CommandAbsent {
		return fault.New(fault.NotFound, "container %s: %s is not in the image", key, CommandAbsent)
	}
	e.nextPID++
	e.starts[key]++
	c.State, c.PID, c.StartedAt, c.Limits = engine.Running, e.nextPID, time.Now(), c.limits
	s.logs = true
	switch {
	case len(c.command) == 2 && c.command[0] == CommandExit:
		code, err := strconv.ParseUint(c.command[1], 10, 8)
		if err != nil {
			return fault.New(fault.Invalid, "container %s: %w", key, err)
		}
		e.end(uid, c, engine.Exit{Code: uint32(code)})
	case len(c.command) > 0 && c.command[0] == CommandPrint:
		e.end(uid, c, engine.Exit{})
	}
	return nil
}

func (e *Engine) signal(uid id.Sandbox, c *container, signal syscall.Signal) {
	ignores := c != nil && len(c.command) > 0 && c.command[0] == CommandIgnoreTerm
	if c == nil || c.State != engine.Running || ignores && signal != syscall.SIGKILL {
		return
	}
	e.end(uid, c, engine.Exit{Code: 128 + uint32(signal)})
}

// limit gives a container that runs the limits of the wish.
func (s *sandbox) limit(a engine.Attempt, action engine.Action) {
	c := s.containers[action.ContainerID]
	for _, spec := range a.Wish.GetSpec().GetContainers() {
		if spec.GetName() == action.Container && c != nil && c.State == engine.Running {
			c.Limits = spec.GetLimits()
		}
	}
}

// end marks a running container as ended, with the lock held.
func (e *Engine) end(uid id.Sandbox, c *container, exit engine.Exit) {
	exit.At = time.Now()
	if e.sandbox(uid).silent {
		c.unseen = &exit
		return
	}
	c.State, c.PID, c.Exit, c.Limits = engine.Exited, 0, &exit, nil
	e.hint(uid)
}

// hint tells the reader to look. When it is slow it looks at all.
func (e *Engine) hint(uid id.Sandbox) {
	for {
		select {
		case e.changes <- uid:
			return
		default:
		}
		uid = ""
		select {
		case <-e.changes:
		default:
		}
	}
}

func (s *sandbox) remove(key string) error {
	if c := s.containers[key]; c != nil && c.State == engine.Running {
		return fault.New(fault.Conflict, "container %s: runs", key)
	}
	delete(s.containers, key)
	return nil
}

func (s *sandbox) release() error {
	if len(s.containers) > 0 {
		return fault.New(fault.Conflict, "%d containers are left", len(s.containers))
	}
	s.pinned, s.remains, s.address = false, false, netip.Addr{}
	return nil
}

// End ends a running container by itself. It returns an error if there is none.
func (e *Engine) End(uid id.Sandbox, name string, exit engine.Exit) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.sandbox(uid).containers {
		if c.Note.GetContainer() == name && c.State == engine.Running {
			e.end(uid, c, exit)
			return nil
		}
	}
	return fmt.Errorf("end container %s of %s: does not run", name, uid)
}

// Vanish removes a container as somebody else would, without a trace.
func (e *Engine) Vanish(uid id.Sandbox, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.sandbox(uid).containers, func(_ string, c *container) bool { return c.Note.GetContainer() == name })
	e.hint(uid)
}

// asksShim says whether a step can do nothing without an answer of the shim.
func asksShim(step engine.Step) bool {
	switch step {
	case engine.StepCreate, engine.StepStart, engine.StepLimits, engine.StepPreStop, engine.StepDelete:
		return true
	}
	return false
}

// endShim ends the shim, with the lock held.
func (e *Engine) endShim(uid id.Sandbox, s *sandbox) {
	s.silent = false
	for _, c := range s.containers {
		if c.State == engine.Running {
			e.end(uid, c, engine.Exit{Unknown: true})
		}
	}
}

// Silence stops the shim of a sandbox, or lets it go on. While it stands still nobody
// can tell how containers are. Nobody is told that it does.
func (e *Engine) Silence(uid id.Sandbox, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sandbox(uid)
	s.silent = silent
	for _, c := range s.containers {
		if !silent && c.unseen != nil {
			e.end(uid, c, *c.unseen)
		}
	}
}

// Detach takes the interface of a sandbox away as somebody else would.
func (e *Engine) Detach(uid id.Sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sandbox(uid).address = netip.Addr{}
	e.hint(uid)
}

// Garble makes the notes of a container unreadable.
func (e *Engine) Garble(uid id.Sandbox, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.sandbox(uid).containers {
		if c.Note.GetContainer() == name {
			c.Note = nil
		}
	}
}

// Reboot ends all processes as a reboot does: namespaces are gone, and nobody can
// tell how containers ended.
func (e *Engine) Reboot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, s := range e.sandboxes {
		s.pinned, s.silent = false, false
		for _, c := range s.containers {
			if c.State == engine.Running {
				e.end(uid, c, engine.Exit{Unknown: true})
			}
			c.Task = false
		}
	}
}

// Deafen makes every question fail with err, until called with nil.
func (e *Engine) Deafen(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deaf = err
	if err == nil {
		e.hint("")
	}
}

// Starts is how often each container was started, by id.
func (e *Engine) Starts() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.starts)
}
