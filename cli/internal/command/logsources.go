package command

import (
	"context"
	"errors"
	"strings"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/selector"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// located is a sandbox, and where its output can be read.
type located struct {
	sandbox.Sandbox
	host    follow.Host
	err     error  // why it cannot be read
	removed bool   // its node keeps what it wrote, and nothing else is known of it
	only    string // the only container of one that was removed; empty if there are several
}

// logSources finds the nodes that have the output of sandboxes. This machine's is asked
// first: it answers also when no coordinator can be reached.
type logSources struct {
	settings *target.Settings
	node     *target.Node // nil if there is none here, or it does not let the caller in
	nodeErr  error
	asked    bool
	cluster  *target.Cluster
	doors    map[string]*target.Inside // of other nodes, by their names
}

func newLogSources(settings *target.Settings) *logSources {
	return &logSources{settings: settings, doors: map[string]*target.Inside{}}
}

// afar reads the output of a sandbox through the gateway of its node. How the sandbox is,
// the coordinator says.
type afar struct {
	*target.Cluster
	door *target.Inside
}

func (a afar) Logs(ctx context.Context, req *sandboxhostv1.ReadLogsRequest, emit func(*sandboxhostv1.ReadLogsResponse) error) error {
	return a.door.Logs(ctx, req, emit)
}

func (l *logSources) close() error {
	var errs []error
	for _, d := range l.doors {
		errs = append(errs, d.Close())
	}
	if l.cluster != nil {
		errs = append(errs, l.cluster.Close())
	}
	if l.node != nil {
		errs = append(errs, l.node.Close())
	}
	return errors.Join(errs...)
}

// here is this machine's node.
func (l *logSources) here(ctx context.Context) (*target.Node, error) {
	if !l.asked {
		l.asked = true
		l.node, l.nodeErr = l.settings.Node(ctx)
	}
	return l.node, l.nodeErr
}

func (l *logSources) records(ctx context.Context) (*target.Cluster, error) {
	if l.cluster == nil {
		cluster, err := l.settings.Cluster(ctx)
		if err != nil {
			return nil, err
		}
		l.cluster = cluster
	}
	return l.cluster, nil
}

// find looks for a sandbox here, and then in the cluster; and if it is neither here nor there,
// for what this machine's node keeps of one that was removed.
func (l *logSources) find(ctx context.Context, ref string) (located, error) {
	node, err := l.here(ctx)
	if err == nil {
		var s sandbox.Sandbox
		if s, err = node.Find(ctx, ref); err == nil {
			return located{Sandbox: s, host: node}, nil
		}
	}
	if node == nil && l.settings.Direct || node != nil && fault.KindOf(err) != fault.NotFound {
		return located{}, err
	}
	if l.settings.Direct {
		return l.removedHere(ctx, ref, err)
	}
	cluster, clusterErr := l.records(ctx)
	if clusterErr != nil && node != nil {
		return l.removedHere(ctx, ref, err) // the coordinator could only have said where else it is
	}
	if clusterErr != nil {
		return located{}, clusterErr
	}
	s, err := cluster.Find(ctx, ref)
	if node != nil && fault.KindOf(err) == fault.NotFound {
		return l.removedHere(ctx, ref, err)
	}
	if err != nil {
		return located{}, err
	}
	return l.onItsNode(ctx, s)
}

// removedHere asks this machine's node whether it keeps what a sandbox wrote that it does
// not have any more. If not, unknown is the answer.
func (l *logSources) removedHere(ctx context.Context, ref string, unknown error) (located, error) {
	var nothing uint32
	req := &sandboxhostv1.ReadLogsRequest{TailLines: &nothing}
	found := located{Sandbox: sandbox.Sandbox{Name: ref}, host: l.node, removed: true}
	switch {
	case id.CheckUID(strings.ToUpper(ref)) == nil:
		req.Uid = strings.ToUpper(ref)
		found.UID = req.GetUid()
	case id.CheckName("sandbox", ref) == nil:
		req.Name = ref
	default:
		return located{}, unknown
	}
	err := l.node.Logs(ctx, req, func(res *sandboxhostv1.ReadLogsResponse) error {
		found.only = res.GetContainer()
		return nil
	})
	switch fault.KindOf(err) {
	case fault.NotFound:
		return located{}, unknown
	case fault.Invalid: // of several containers: one has to be named
		return found, nil
	}
	return found, err
}

// onItsNode reaches the node of a sandbox of the cluster that is not here.
func (l *logSources) onItsNode(ctx context.Context, s sandbox.Sandbox) (located, error) {
	if s.Node == "" {
		return located{}, fault.New(fault.Unavailable, "read logs of sandbox %s: it has no node yet: %s", s.Name, stateOf(&s))
	}
	door, ok := l.doors[s.Node]
	if !ok {
		record, err := l.cluster.Lookup(ctx, resourcev1.Kind_KIND_NODE, s.Node)
		if err != nil {
			return located{}, err
		}
		if door, err = l.settings.Inside(ctx, record); err != nil {
			return located{}, err
		}
		l.doors[s.Node] = door
	}
	return located{Sandbox: s, host: afar{l.cluster, door}}, nil
}

// selected lists the sandboxes that a selector takes: of the cluster, or with
// --node-socket of that node alone.
func (l *logSources) selected(ctx context.Context, text string) ([]located, error) {
	if l.settings.Direct {
		return l.selectedHere(ctx, text)
	}
	cluster, err := l.records(ctx)
	if err != nil {
		return nil, err
	}
	records, err := cluster.Records(ctx, resourcev1.Kind_KIND_SANDBOX, text)
	if err != nil {
		return nil, err
	}
	var found []located
	for _, r := range records {
		s := sandbox.FromRecord(r)
		if node, err := l.here(ctx); err == nil {
			if _, err := node.Get(ctx, s.UID); err == nil {
				found = append(found, located{Sandbox: s, host: node})
				continue
			}
		}
		one, err := l.onItsNode(ctx, s)
		if err != nil {
			one = located{Sandbox: s, err: err} // the others are shown
		}
		found = append(found, one)
	}
	if len(found) == 0 {
		return nil, exit.Try(fault.New(fault.NotFound, "no sandbox has labels that match %q", text), "staddle get sandbox -l %s", text)
	}
	return found, nil
}

func (l *logSources) selectedHere(ctx context.Context, text string) ([]located, error) {
	want, err := selector.Parse(text)
	if err != nil {
		return nil, exit.BadUsage("--selector: %s", err)
	}
	node, err := l.here(ctx)
	if err != nil {
		return nil, err
	}
	all, err := node.List(ctx)
	if err != nil {
		return nil, err
	}
	var found []located
	for _, s := range all {
		if want.Matches(s.Labels) {
			found = append(found, located{Sandbox: s, host: node})
		}
	}
	if len(found) == 0 {
		return nil, fault.New(fault.NotFound, "no sandbox of this node has labels that match %q", text)
	}
	return found, nil
}
