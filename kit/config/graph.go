package config

import (
	"slices"
)

// Compositions of a supervisor: what it runs.
const (
	// CompositionNode is the six processes of a node, and containerd if managed.
	CompositionNode = "node"
	// CompositionMachine adds a coordinator on the same machine.
	CompositionMachine = "machine"
)

// What becomes of the sandboxes when the supervisor is asked to end by a signal.
const (
	// StopKeep lets them go on.
	StopKeep = "keep"
	// StopDrain ends them first, in order: for a supervisor that is the first process
	// of a container, with which they end anyway.
	StopDrain = "drain"
)

// Supervisor is the boot graph and its limits.
type Supervisor struct {
	// Composition is "node" or "machine".
	Composition string `yaml:"composition"`
	// StartTimeout bounds a component's start while it gives no outside reason.
	StartTimeout Duration `yaml:"start_timeout"`
	// StopTimeout is the grace between a request to end and the end.
	StopTimeout Duration `yaml:"stop_timeout"`
	// StopMode is "keep" or "drain": what becomes of the sandboxes at the end by a
	// signal.
	StopMode string `yaml:"stop_mode"`
	// DrainTimeout is how long sandboxes may take to end with "drain", whatever their
	// grace periods.
	DrainTimeout Duration `yaml:"drain_timeout"`
	// Backoff spaces restarts.
	Backoff Backoff `yaml:"backoff"`
	// Components overrides or adds members of the graph, by name.
	Components []Component `yaml:"components"`
}

// Backoff spaces tries: Initial, doubled up to Cap, from the start again after a
// Stable time.
type Backoff struct {
	// Initial is the first wait.
	Initial Duration `yaml:"initial"`
	// Cap is the longest wait.
	Cap Duration `yaml:"cap"`
	// Stable is how long a component must live for its count to be forgotten.
	Stable Duration `yaml:"stable"`
}

// Component is one member of the boot graph.
type Component struct {
	// Name is the process's name.
	Name string `yaml:"name"`
	// Command starts it. Empty means staddle-<name> beside our own binary.
	Command []string `yaml:"command"`
	// Needs names the members that must be ready first, and whose readiness it
	// waits for again after they were away.
	Needs []string `yaml:"needs"`
	// OrderOnly names the members that must be ready first at boot only.
	OrderOnly []string `yaml:"order_only"`
	// StartTimeout overrides the supervisor's. Zero means unset.
	StartTimeout Duration `yaml:"start_timeout"`
	// StopTimeout overrides the supervisor's. Zero means unset.
	StopTimeout Duration `yaml:"stop_timeout"`
	// Capabilities it is started with, such as CAP_NET_ADMIN.
	Capabilities []string `yaml:"capabilities"`
	// Env is added to its environment.
	Env map[string]string `yaml:"env"`
	// Disabled takes it out of the graph, and out of the needs of others.
	Disabled bool `yaml:"disabled"`
}

// ContainerdName is the graph's name of the runtime engine.
const ContainerdName = "containerd"

// members is the graph of a machine without overrides, in a valid start order.
func members() []Component {
	return []Component{
		// It gives the keys that it makes at its first start to those who use them.
		{Name: "coordinator", Capabilities: []string{"CAP_CHOWN"}},
		{Name: ContainerdName},
		{Name: "clusteraccess"}, // ready never means connected: a coordinator beside it holds nothing up
		{
			// It mounts, and removes what workloads left, whoever owns it there.
			Name: "storage", OrderOnly: []string{"clusteraccess"},
			Capabilities: []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"},
		},
		{
			// It makes namespaces, mounts, interfaces and rules, ends what is left in control
			// groups, looks into images and control groups of root, asks a shim of root where
			// it works, and gives files to the users of workloads and removes theirs. It gives
			// ids to user namespaces, and the kernel the AppArmor profile of workloads. Its
			// resolver listens on port 53.
			Name: "sandboxhost", Needs: []string{ContainerdName, "storage"}, OrderOnly: []string{"clusteraccess"},
			Capabilities: []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_KILL", "CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER",
				"CAP_SETUID", "CAP_SETGID", "CAP_MAC_ADMIN", "CAP_NET_BIND_SERVICE"},
		},
		{Name: "storage-agent", Needs: []string{"clusteraccess", "storage", "sandboxhost"}},
		{Name: "sandbox-agent", Needs: []string{"clusteraccess", "sandboxhost"}},
		{Name: "presence", Needs: []string{"clusteraccess", "storage", "sandboxhost", "storage-agent", "sandbox-agent"}},
	}
}

// Graph returns the components of this node, defaults and overrides joined, in a
// valid start order for the defaults; additions follow in the file's order. A
// disabled component, an unmanaged containerd and a coordinator elsewhere are
// left out, and edges to them with it; the edge to an unmanaged containerd stays
// in Needs, because its users wait for it all the same.
func (n *Node) Graph() []Component {
	var graph []Component
	for _, c := range members() {
		if c.Name == "coordinator" && n.Supervisor.Composition != CompositionMachine {
			continue
		}
		if c.Name == ContainerdName && !n.Containerd.Managed {
			continue
		}
		graph = append(graph, c)
	}
	for _, over := range n.Supervisor.Components {
		i := slices.IndexFunc(graph, func(c Component) bool { return c.Name == over.Name })
		if i < 0 {
			graph = append(graph, over)
			continue
		}
		graph[i] = graph[i].override(over)
	}
	return prune(graph)
}

// Neighbours returns the names that a process waits for before it is ready.
func (n *Node) Neighbours(process string) []string {
	for _, c := range n.Graph() {
		if c.Name == process {
			return c.Needs
		}
	}
	return nil
}

func (c Component) override(o Component) Component {
	if o.Command != nil {
		c.Command = o.Command
	}
	if o.Needs != nil {
		c.Needs = o.Needs
	}
	if o.OrderOnly != nil {
		c.OrderOnly = o.OrderOnly
	}
	if o.StartTimeout != 0 {
		c.StartTimeout = o.StartTimeout
	}
	if o.StopTimeout != 0 {
		c.StopTimeout = o.StopTimeout
	}
	if o.Capabilities != nil {
		c.Capabilities = o.Capabilities
	}
	if o.Env != nil {
		c.Env = o.Env
	}
	c.Disabled = o.Disabled
	return c
}

// prune removes disabled components and the edges that lead nowhere.
func prune(graph []Component) []Component {
	graph = slices.DeleteFunc(graph, func(c Component) bool { return c.Disabled })
	names := []string{ContainerdName}
	for _, c := range graph {
		names = append(names, c.Name)
	}
	gone := func(name string) bool { return !slices.Contains(names, name) }
	for i, c := range graph {
		graph[i].Needs = slices.DeleteFunc(slices.Clone(c.Needs), gone)
		graph[i].OrderOnly = slices.DeleteFunc(slices.Clone(c.OrderOnly), gone)
	}
	return graph
}
