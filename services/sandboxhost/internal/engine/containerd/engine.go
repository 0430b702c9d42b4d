// Package containerd is the engine that makes containers with containerd: the
// effect behind every step that a keeper decides.
//
// All containers of a sandbox share one shim and the namespaces that were pinned
// for it; there is no pause container. With every container containerd keeps the
// note of what it was made for, so that a survivor is known by what it is. An
// exit outlives the death of containerd, because a sandbox record with the
// container's id is written before the process starts.
//
// It must never start, stop or remove anything that it was not told to, and
// never take a question that failed for an answer: while containerd cannot be
// asked every method says Unavailable. Not yet: joining a sandbox's shim without
// the shim's own start helper, which would save some milliseconds per further
// container.
//
// In the trail of a sandbox this is the last step.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/cgroup"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/hostport"
	"staddle.internal/services/sandboxhost/internal/idrange"
	"staddle.internal/services/sandboxhost/internal/image"
	"staddle.internal/services/sandboxhost/internal/inlet"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/namespace"
	"staddle.internal/services/sandboxhost/internal/network"
	"staddle.internal/services/sandboxhost/internal/permit"
	"staddle.internal/services/sandboxhost/internal/secret"
)

const (
	// process is whose folders are used.
	process = "sandboxhost"
	// snapshotter keeps root filesystems.
	snapshotter = "overlayfs"
	// stepLimit bounds every step but that of images: a shim or a disk that does
	// not answer must not hold a keeper for ever.
	stepLimit = time.Minute
)

// Config says how the node is set up.
type Config struct {
	// Address is containerd's socket, Namespace where our containers are in it.
	Address, Namespace string
	// State is the folder in which containerd keeps what ends with the boot. Only
	// folders that it forgot of containers of ours are removed there.
	State string
	// Paths of the node.
	Paths config.Paths
	// CgroupParent is the control group below which all workloads live.
	CgroupParent string
	// Network is the sandbox network.
	Network config.Network
	// UserNamespaces are the ids for user namespaces.
	UserNamespaces config.UserNamespaces
	// Images says where images come from.
	Images config.Images
	// Logs says how much is kept of what workloads write.
	Logs config.Logs
	// Node is the name of the node.
	Node string
	// Rules say what sandboxes may ask of the node.
	Rules permit.Rules
	// Init is the program staddle-init on this node.
	Init string
}

// Deps are what the engine works with.
type Deps struct {
	// Log gets what happens beside the steps.
	Log *slog.Logger
	// FDs keeps the pipes of workloads over our death.
	FDs *fdstore.Store
	// NotReady, if not nil, is told in one sentence why the engine cannot work
	// now, and "" when it can again.
	NotReady func(reason string)
}

// Engine makes containers. It satisfies engine.Engine.
type Engine struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	client    *containerd.Client
	clientErr error

	pins    *namespace.Pins
	network *network.Network
	ids     *idrange.Pool
	logs    *logs.Store
	inlets  *inlet.Inlets
	images  *image.Store
	secrets *secret.Files
	users   *users
	hints   *hints

	mu         sync.Mutex // guards what follows
	connected  bool
	reason     string // why not connected
	containers map[string]*container
	cgroups    *cgroup.Tree
	abilities  abilities
	told       map[string]bool // of what the machine lacks
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine. It connects to nothing until Run.
func New(cfg Config, deps Deps) *Engine {
	if deps.NotReady == nil {
		deps.NotReady = func(string) {}
	}
	run := filepath.Join(cfg.Paths.Run(), process)
	data := cfg.Paths.Var(process)
	e := &Engine{
		cfg: cfg, deps: deps, log: deps.Log,
		pins:       namespace.New(run),
		hints:      newHints(),
		reason:     "containerd was not asked yet",
		containers: map[string]*container{},
		told:       map[string]bool{},
	}
	e.client, e.clientErr = dial(cfg)
	e.network = network.New(
		network.Config{
			Bridge: cfg.Network.Bridge, Subnet: cfg.Network.Subnet, Subnet6: cfg.Network.Subnet6,
			Routable: cfg.Network.IPv4Routable, NoLocalNet: cfg.Network.DisableLocalNet, Ledger: filepath.Join(data, "network.db"), Policy: policyOf(cfg.Network),
		},
		network.Deps{Log: deps.Log, Namespaces: e.pins})
	e.ids = idrange.New(
		idrange.Config{First: cfg.UserNamespaces.FirstID, Ranges: cfg.UserNamespaces.Ranges, Ledger: filepath.Join(data, "ids.db")}, deps.Log)
	e.logs = logs.New(
		logs.Config{
			Dir: filepath.Join(data, "logs"), Run: run, MaxSize: int64(cfg.Logs.MaxSizePerStream), KeepAttempts: cfg.Logs.KeepAttempts,
			Removed: filepath.Join(data, "logs-removed"), KeepRemoved: cfg.Logs.KeepRemoved.Std(), MaxRemoved: int64(cfg.Logs.MaxSizeRemoved),
		},
		logs.Deps{Log: deps.Log, FDs: deps.FDs})
	e.inlets = inlet.New(deps.FDs)
	e.images = image.New(
		image.Config{
			Snapshotter: snapshotter, PlainHTTP: cfg.Images.PlainHTTP, RegistryDir: cfg.Images.RegistryDir, AuthFile: cfg.Images.AuthFile,
			MaxPulls: cfg.Images.MaxPulls, MaxLayers: cfg.Images.MaxLayers, StallTimeout: cfg.Images.StallTimeout.Std(),
		},
		image.Deps{Client: e.ask, Log: deps.Log})
	e.secrets = secret.NewFiles(filepath.Join(run, "secrets"))
	e.users = newUsers(e)
	return e
}

// Logs is the output of all workloads.
func (e *Engine) Logs() *logs.Store { return e.logs }

// Images is the images of this node.
func (e *Engine) Images() *image.Store { return e.images }

// Changes delivers the sandboxes to look at again.
func (e *Engine) Changes() <-chan id.Sandbox { return e.hints.out }

// ask returns the connection, or fault.Unavailable with the reason while
// containerd cannot be asked.
func (e *Engine) ask() (*containerd.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.connected {
		return nil, fault.WithReason(fault.New(fault.Unavailable, "ask containerd: %s", e.reason), "CONTAINERD_UNAVAILABLE")
	}
	return e.client, nil
}

// Do carries out one action. See engine.Engine.
func (e *Engine) Do(ctx context.Context, a engine.Attempt, action engine.Action) error {
	if _, err := e.ask(); err != nil {
		return err
	}
	uid, err := id.ParseSandbox(a.Wish.GetUid())
	if err != nil {
		return err
	}
	if action.Step == engine.StepImages { // takes as long as the registry takes
		return e.prepareImages(ctx, a)
	}
	if action.Step == engine.StepPreStop { // takes as long as its caller allows
		return e.preStop(ctx, action.ContainerID)
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	switch action.Step {
	case engine.StepNamespaces:
		return e.pin(ctx, uid, a)
	case engine.StepNetwork:
		return e.attach(ctx, uid, a)
	case engine.StepCreate:
		return e.create(ctx, uid, a, action.Container)
	case engine.StepStart:
		return e.start(ctx, engine.ContainerID(uid, action.Container, a.Number))
	case engine.StepLimits:
		return e.limit(ctx, a, action)
	case engine.StepSignal:
		return e.signal(ctx, action.ContainerID, action.Signal)
	case engine.StepDelete:
		return e.remove(ctx, action.ContainerID)
	case engine.StepEndShim:
		return e.endShims(uid)
	case engine.StepRelease:
		return e.release(uid)
	case engine.StepLogs:
		return e.removeWritten(uid, logs.Name{Manager: a.Wish.GetManager(), Name: a.Wish.GetName()})
	}
	return fault.New(fault.Internal, "do step %s for sandbox %s: no such step", action.Step, uid)
}

// prepareImages checks that this node may run the sandbox at all, and makes its
// images present.
func (e *Engine) prepareImages(ctx context.Context, a engine.Attempt) error {
	if err := e.cfg.Rules.Check(a.Wish.GetUid(), a.Wish.GetSpec()); err != nil {
		return err
	}
	type need struct {
		ref, digest string
		policy      image.Policy
	}
	seen := map[need]image.Image{}
	for _, c := range a.Wish.GetSpec().GetContainers() {
		wanted := need{c.GetImage(), a.Images[c.GetName()], pullPolicy(c)}
		img, ok := seen[wanted]
		if !ok {
			var err error
			if img, err = e.prepareImage(ctx, a, wanted.ref, wanted.digest, wanted.policy); err != nil {
				return err
			}
			seen[wanted] = img
		}
		if a.Images != nil {
			a.Images[c.GetName()] = img.Digest.String()
		}
	}
	return nil
}

// prepareImage makes one image present: what an earlier life was made of, if that is
// still to be had, else what the reference means now.
func (e *Engine) prepareImage(ctx context.Context, a engine.Attempt, ref, digest string, policy image.Policy) (image.Image, error) {
	progress := func(at image.State) {
		if a.Progress != nil {
			a.Progress(image.Sentence(ref, at))
		}
	}
	if digest != "" {
		pinned := policy
		if pinned == image.Always { // a digest never means anything else
			pinned = image.IfNotPresent
		}
		img, err := e.images.Prepare(ctx, image.Pinned(ref, digest), pinned, progress)
		if !errors.Is(err, fault.NotFound) {
			return img, err
		}
	}
	return e.images.Prepare(ctx, ref, policy, progress)
}

func pullPolicy(c *resourcev1.ContainerSpec) image.Policy {
	switch c.GetPullPolicy() {
	case resourcev1.PullPolicy_PULL_POLICY_ALWAYS:
		return image.Always
	case resourcev1.PullPolicy_PULL_POLICY_NEVER:
		return image.Never
	}
	return image.IfNotPresent
}

func (e *Engine) attach(ctx context.Context, uid id.Sandbox, a engine.Attempt) error {
	if hostNetwork(a) {
		return nil
	}
	if err := e.cfg.Rules.Check(a.Wish.GetUid(), a.Wish.GetSpec()); err != nil {
		return err
	}
	addr, err := e.network.Attach(ctx, uid, network.Wanted{Group: a.Wish.GetSpec().GetNetworkGroup(), Ports: ports(a.Wish.GetSpec())})
	if err != nil {
		return err
	}
	return e.renewHosts(uid, a, addr)
}

// ports are those of the node that lead to a sandbox.
func ports(spec *resourcev1.SandboxSpec) []network.Port {
	var all []network.Port
	for _, p := range spec.GetPublishedPorts() {
		port := network.Port{Protocol: hostport.TCP, Host: uint16(p.GetHostPort()), Inside: uint16(p.GetPort())}
		if p.GetProtocol() == resourcev1.PortProtocol_PORT_PROTOCOL_UDP {
			port.Protocol = hostport.UDP
		}
		if addr, err := netip.ParseAddr(p.GetHostAddress()); err == nil { // empty is every address
			port.Address = addr
		}
		all = append(all, port)
	}
	return all
}

// Tasks is how many tasks all workloads have, and how many they may have; 0 for as many
// as there can be.
func (e *Engine) Tasks() (now, most int64, err error) {
	groups := e.groups()
	if groups == nil { // not connected yet
		return 0, 0, nil
	}
	return groups.PIDs(e.group())
}

// MemoryLeft is what the control groups around all workloads leave of memory, and their
// tightest limit; 0 for no limit.
func (e *Engine) MemoryLeft() (available, limit int64, err error) {
	groups := e.groups()
	if groups == nil { // not connected yet
		return 0, 0, nil
	}
	return groups.MemoryLeft(e.group())
}

func (e *Engine) groups() *cgroup.Tree {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cgroups
}

// group is the control group of all workloads, and of one sandbox's.
func (e *Engine) group(names ...string) string {
	return "/" + filepath.Join(append([]string{strings.Trim(e.cfg.CgroupParent, "/")}, names...)...)
}

// prepare makes what every sandbox stands on. Safe to repeat.
func (e *Engine) prepare(ctx context.Context) error {
	for _, dir := range []string{e.cfg.Paths.Var(process), e.temp()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	if err := e.pins.Open(); err != nil {
		return err
	}
	users, err := e.pins.Users()
	if err != nil {
		return err
	}
	if err := e.ids.Open(users); err != nil {
		return err
	}
	if err := mount.SetTempMountLocation(e.temp()); err != nil {
		return fmt.Errorf("choose folder of passing mounts: %w", err)
	}
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Ensure(e.group(engine.ShimGroup)); err != nil {
		return err
	}
	able, err := e.lookAround(tree)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.cgroups, e.abilities = tree, able
	e.mu.Unlock()
	if e.cfg.Network.Disable {
		return nil
	}
	return e.network.Open(ctx)
}

// temp is where images are looked into for a moment.
func (e *Engine) temp() string { return filepath.Join(e.cfg.Paths.Run(), process, "tmp") }

func hostNetwork(a engine.Attempt) bool {
	return a.Wish.GetSpec().GetNetwork() == resourcev1.NetworkMode_NETWORK_MODE_HOST
}

func hostname(a engine.Attempt) string {
	if name := a.Wish.GetSpec().GetHostname(); name != "" {
		return name
	}
	return a.Wish.GetName()
}

// now is the node's wall clock, cut to what containerd keeps.
func now() time.Time { return time.Now().UTC() }
