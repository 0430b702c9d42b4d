package target

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/sandbox"
)

// pageSize is how many records one request asks for.
const pageSize = 1000

// updateTries bounds how often a change is made anew on top of somebody else's.
const updateTries = 10

// Node is the sandboxhost of one node.
type Node struct {
	conn   *grpc.ClientConn
	host   sandboxhostv1.SandboxHostServiceClient
	images sandboxhostv1.ImageServiceClient
	// services of the node.
	services sandboxhostv1.ServiceHostServiceClient
}

// Node connects to the node's sandboxhost. A caller whom it refuses is told so
// before anything is done: fault.Denied.
func (s *Settings) Node(ctx context.Context) (*Node, error) {
	conn, err := Socket(ctx, "sandboxhost", s.NodeSocket)
	if err != nil {
		return nil, err
	}
	n := &Node{conn, sandboxhostv1.NewSandboxHostServiceClient(conn), sandboxhostv1.NewImageServiceClient(conn), sandboxhostv1.NewServiceHostServiceClient(conn)}
	_, err = n.host.ListSandboxes(ctx, &sandboxhostv1.ListSandboxesRequest{PageSize: 1})
	if fault.KindOf(err) == fault.Denied {
		return nil, errors.Join(Refused("sandboxhost", s.NodeSocket, err), conn.Close())
	}
	return n, nil // whatever else is wrong is said by the first thing that is asked for
}

// Close ends the connection.
func (n *Node) Close() error { return n.conn.Close() }

// List returns all sandboxes of the node.
func (n *Node) List(ctx context.Context) ([]sandbox.Sandbox, error) {
	var out []sandbox.Sandbox
	for token := ""; ; {
		page, err := n.host.ListSandboxes(ctx, &sandboxhostv1.ListSandboxesRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, wrap(err, "list sandboxes")
		}
		for _, s := range page.GetSandboxes() {
			out = append(out, sandbox.FromState(s))
		}
		if token = page.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

// Find returns the sandbox that ref names.
func (n *Node) Find(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	all, err := n.List(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return choose(ref, all)
}

func choose(ref string, all []sandbox.Sandbox) (sandbox.Sandbox, error) {
	named := make([]sandbox.Named, len(all))
	for i := range all {
		named[i] = all[i].Named()
	}
	i, err := sandbox.Find("sandbox", ref, named)
	if err != nil {
		return sandbox.Sandbox{}, exit.Try(err, "staddle ps")
	}
	return all[i], nil
}

// Get returns a sandbox by its uid.
func (n *Node) Get(ctx context.Context, uid string) (sandbox.Sandbox, error) {
	resp, err := n.host.GetSandbox(ctx, &sandboxhostv1.GetSandboxRequest{Uid: uid})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.FromState(resp.GetSandbox()), nil
}

// Create makes the node keep a new sandbox.
func (n *Node) Create(ctx context.Context, name string, labels map[string]string, spec *resourcev1.SandboxSpec) (sandbox.Sandbox, error) {
	for _, c := range spec.GetContainers() {
		if len(c.GetDisks()) > 0 {
			return sandbox.Sandbox{}, exit.BadUsage("create sandbox %s: disks are given out by a coordinator only; leave out --disk or --node-socket", name)
		}
	}
	return n.ensure(ctx, string(id.NewSandbox()), name, 1, labels, spec)
}

func (n *Node) ensure(
	ctx context.Context, uid, name string, generation uint64, labels map[string]string, spec *resourcev1.SandboxSpec,
) (sandbox.Sandbox, error) {
	resp, err := n.host.EnsureSandbox(ctx, &sandboxhostv1.EnsureSandboxRequest{
		Uid: uid, Name: name, Generation: generation, Manager: sandbox.Local, Spec: spec, Labels: labels,
	})
	if err != nil {
		return sandbox.Sandbox{}, explainEnsure(name, err)
	}
	return sandbox.FromState(resp.GetSandbox()), nil
}

func explainEnsure(name string, err error) error {
	wrapped := wrap(err, "ensure sandbox %s", name)
	switch fault.Reason(err) {
	case "NAME_TAKEN":
		return exit.Try(wrapped, "another --name, or staddle rm %s", name)
	case "HOST_NETWORK_NOT_ALLOWED":
		return exit.Try(wrapped, "allow_host_network: true in the node's node.yaml, or --network sandbox")
	case "HOST_PATH_NOT_ALLOWED", "DEVICE_NOT_ALLOWED", "CAPABILITY_NOT_ALLOWED", "SYSCTL_NOT_ALLOWED", "PRIVILEGED_NOT_ALLOWED",
		"UNCONFINED_NOT_ALLOWED", "OOM_SCORE_NOT_ALLOWED":
		return exit.Try(wrapped, "the key that it names in the node's node.yaml, then staddle component restart sandboxhost")
	}
	return wrapped
}

// Update changes the spec of a sandbox by change, which is called again on the
// newest spec when somebody else was faster.
func (n *Node) Update(ctx context.Context, uid string, change func(*resourcev1.SandboxSpec)) (sandbox.Sandbox, error) {
	var last error
	for range updateTries {
		now, err := n.Get(ctx, uid)
		if err != nil {
			return sandbox.Sandbox{}, wrap(err, "get sandbox %s", uid)
		}
		if now.Manager != sandbox.Local {
			return sandbox.Sandbox{}, exit.Try(fault.New(fault.Denied, "change sandbox %s: it belongs to the cluster", now.Name),
				"the same command without --node-socket")
		}
		spec := proto.CloneOf(now.Spec)
		change(spec)
		if proto.Equal(spec, now.Spec) {
			return now, nil
		}
		next, err := n.ensure(ctx, uid, now.Name, now.Generation+1, now.Labels, spec)
		if reason := fault.Reason(err); reason != "STALE_GENERATION" && reason != "SPEC_CHANGED" {
			return next, err
		}
		last = err
	}
	return sandbox.Sandbox{}, last
}

// Remove ends the wish for s, one of the cluster only if it is lost to it. It does
// not wait for the sandbox to be gone.
func (n *Node) Remove(ctx context.Context, s sandbox.Sandbox, lost bool) error {
	if s.Manager != sandbox.Local && !lost {
		return exit.Try(fault.New(fault.Denied, "remove sandbox %s: it belongs to the cluster", s.Name),
			"the same command without --node-socket; or with --lost, if the cluster has lost its record")
	}
	_, err := n.host.RemoveSandbox(ctx, &sandboxhostv1.RemoveSandboxRequest{Uid: s.UID, Manager: s.Manager, Lost: lost})
	if err != nil {
		return wrap(err, "remove sandbox %s", s.Name)
	}
	return nil
}

// Forget drops what is known of a sandbox that has been torn down. It is the
// last step of a removal on a node alone.
func (n *Node) Forget(ctx context.Context, s sandbox.Sandbox, lost bool) error {
	_, err := n.host.ForgetSandbox(ctx, &sandboxhostv1.ForgetSandboxRequest{Uid: s.UID, Manager: s.Manager, Lost: lost})
	if err != nil {
		return wrap(err, "forget sandbox %s", s.Name)
	}
	return nil
}

// Watch sends every sandbox, the mark, and changes until emit fails or the
// stream ends. An empty uid means all.
func (n *Node) Watch(ctx context.Context, uid string, emit func(sandbox.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.host.WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{Uid: uid})
	if err != nil {
		return wrap(err, "watch sandboxes")
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended("watch sandboxes", err)
		}
		if err := emit(eventOfHost(msg)); err != nil {
			return err
		}
	}
}

func eventOfHost(msg *sandboxhostv1.WatchSandboxesResponse) sandbox.Event {
	switch {
	case msg.GetChanged() != nil:
		s := sandbox.FromState(msg.GetChanged())
		return sandbox.Event{Sandbox: &s}
	case msg.GetForgotten() != nil:
		s := sandbox.FromState(msg.GetForgotten())
		return sandbox.Event{Sandbox: &s, Gone: true}
	default:
		return sandbox.Event{}
	}
}

// ended makes a failure of the end of a stream that never ends by itself.
func ended(what string, err error) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "%s: the stream ended", what)
	}
	return wrap(err, "%s", what)
}
