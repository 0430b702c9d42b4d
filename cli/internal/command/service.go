package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/output"
	"staddle.internal/cli/internal/target"
)

var serviceColumns = []string{"NAME", "MANAGER", "ADDRESS", "PORTS", "SELECTOR", "AFFINITY", "ENDPOINTS"}

func (a *app) serviceCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "ls", Short: "List the services of the node", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withNode(cmd.Context(), func(ctx context.Context, n *target.Node) error {
				all, err := n.Services(ctx)
				if err != nil {
					return err
				}
				return output.Print(a.out, a.format, serviceColumns, serviceRows(all))
			})
		},
	}
	c := group("service", "Services of this node", a.serviceCreateCommand(), list, a.serviceRemoveCommand())
	c.Long = "A service is one address that leads to all ready sandboxes of the node with certain\n" +
		"labels. These commands talk to the node's own socket, which root may and the members\n" +
		"of the group staddle-admin. Services of the cluster, which all nodes have, are made\n" +
		"with \"staddle apply\"."
	return c
}

func (a *app) serviceRemoveCommand() *cobra.Command {
	var lost bool
	c := &cobra.Command{
		Use: "rm NAME|UID...", Short: "Remove services", Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: a.serviceNames,
		Long: "Remove services that were made on this node. One whose record the cluster has lost,\n" +
			"because its store was made anew or put back to a copy, is kept; --lost removes it.",
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withNode(cmd.Context(), func(ctx context.Context, n *target.Node) error {
				var errs []error
				for _, ref := range given {
					name, err := n.RemoveService(ctx, ref, lost)
					if err == nil {
						_, err = fmt.Fprintln(a.out, name)
					}
					errs = append(errs, err)
				}
				return errors.Join(errs...)
			})
		},
	}
	c.Flags().BoolVar(&lost, "lost", false, "also remove services of the cluster: it has lost their records")
	return c
}

func (a *app) serviceCreateCommand() *cobra.Command {
	var selector, ports, nodePorts []string
	var affinity time.Duration
	var address string
	var headless bool
	c := &cobra.Command{
		Use: "create NAME", Short: "Lead an address to the ready sandboxes with some labels", Args: args(cobra.ExactArgs(1)),
		Long: `Lead an address to the ready sandboxes of the node with some labels. It is found as
NAME.service.<domain> and is reached from the node and its sandboxes. A connection goes
to any of them; with --affinity a client comes to the same one again. While none is ready
it refuses. With --headless it has no address: its name leads to the addresses of all that
are ready, and clients choose.`,
		Example: `  staddle --node-socket /run/staddle/sandboxhost.sock run -d --label app=web IMAGE
  staddle service create web --selector app=web --port http=80:8080
  staddle service create web --selector app=web --port http=80:8080 --node-port http=30080`,
		RunE: func(cmd *cobra.Command, given []string) error {
			spec, err := serviceSpec(selector, ports, affinity)
			if err == nil {
				err = addNodePorts(spec, nodePorts)
			}
			if err != nil {
				return err
			}
			spec.Headless = headless
			return a.withNode(cmd.Context(), func(ctx context.Context, n *target.Node) error {
				s, err := n.CreateService(ctx, given[0], address, spec)
				if err != nil {
					return err
				}
				return output.PrintOne(a.out, a.format, serviceColumns, serviceRow(s))
			})
		},
	}
	f := c.Flags()
	f.StringArrayVar(&selector, "selector", nil, "label that the sandboxes have, as `KEY=VALUE`; several are all needed")
	f.StringArrayVar(&ports, "port", nil, "port, as `[NAME=]PORT[:TARGET][/PROTOCOL]`; TARGET is the sandboxes' (default: the same), PROTOCOL tcp or udp")
	f.StringArrayVar(&nodePorts, "node-port", nil, "port of the node that leads there too, as `PORT=[ADDRESS:]NODEPORT`; PORT is the name or the number of a --port, ADDRESS one of the node (default: all)")
	f.DurationVar(&affinity, "affinity", 0, "how long a client comes to the same sandbox again after its last connection (default: not at all)")
	f.StringVar(&address, "address", "", "virtual `ADDRESS` (default: any that is free)")
	f.BoolVar(&headless, "headless", false, "no virtual address: the name leads to the sandboxes themselves")
	_, _ = c.MarkFlagRequired("selector"), c.MarkFlagRequired("port") // they are there
	return c
}

func serviceSpec(selector, ports []string, affinity time.Duration) (*resourcev1.ServiceSpec, error) {
	spec := &resourcev1.ServiceSpec{Selector: map[string]string{}}
	for _, text := range selector {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, exit.BadUsage("--selector %q: write KEY=VALUE", text)
		}
		spec.Selector[key] = value
	}
	for _, text := range ports {
		p, err := servicePort(text)
		if err != nil {
			return nil, err
		}
		spec.Ports = append(spec.Ports, p)
	}
	if affinity != 0 {
		spec.Affinity = durationpb.New(affinity)
	}
	return spec, nil
}

// servicePort reads [NAME=]PORT[:TARGET][/PROTOCOL].
func servicePort(text string) (*resourcev1.ServicePort, error) {
	p := &resourcev1.ServicePort{}
	rest := text
	if name, after, ok := strings.Cut(rest, "="); ok {
		p.Name, rest = name, after
	}
	rest, p.Protocol, _ = strings.Cut(rest, "/")
	port, inside, mapped := strings.Cut(rest, ":")
	var err error
	for _, number := range []struct {
		text string
		into *uint32
		ask  bool
	}{{port, &p.Port, true}, {inside, &p.TargetPort, mapped}} {
		if !number.ask {
			continue
		}
		n, parseErr := strconv.ParseUint(number.text, 10, 16)
		if parseErr != nil || n == 0 {
			err = exit.BadUsage("--port %q: write [NAME=]PORT[:TARGET][/PROTOCOL], like 80:8080/tcp", text)
		}
		*number.into = uint32(n)
	}
	return p, err
}

// addNodePorts gives ports of a service the ports of the node in texts like
// PORT=[ADDRESS:]NODEPORT, where PORT is a name or a number.
func addNodePorts(spec *resourcev1.ServiceSpec, texts []string) error {
	for _, text := range texts {
		which, at, _ := strings.Cut(text, "=")
		address, number, ok := strings.Cut(at, ":")
		if !ok {
			address, number = "", at
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 {
			return exit.BadUsage("--node-port %q: write PORT=[ADDRESS:]NODEPORT, like http=30080", text)
		}
		var found []*resourcev1.ServicePort
		for _, p := range spec.GetPorts() {
			if which != "" && (p.GetName() == which || strconv.Itoa(int(p.GetPort())) == which) {
				found = append(found, p)
			}
		}
		switch {
		case len(found) == 0:
			return exit.BadUsage("--node-port %q: there is no --port with the name or number %q", text, which)
		case len(found) > 1:
			return exit.BadUsage("--node-port %q: several ports are called %q; give them names", text, which)
		case found[0].GetNodePort() != 0:
			return exit.BadUsage("--node-port %q: port %s has one already", text, which)
		}
		found[0].NodePort, found[0].NodeAddress = uint32(port), address
	}
	return nil
}

func serviceRows(all []*sandboxhostv1.ServiceState) []output.Row {
	rows := make([]output.Row, len(all))
	for i, s := range all {
		rows[i] = serviceRow(s)
	}
	return rows
}

func serviceRow(s *sandboxhostv1.ServiceState) output.Row {
	spec := s.GetWish().GetSpec()
	var endpoints []string
	for _, e := range s.GetEndpoints() {
		endpoints = append(endpoints, e.GetName())
	}
	return output.Row{
		Cells: []string{
			s.GetWish().GetName(), s.GetWish().GetManager(), addressText(spec, s.GetWish().GetAddress()), portsText(spec), labelsText(spec.GetSelector()),
			affinityText(spec), strings.Join(endpoints, ","),
		},
		ID: s.GetWish().GetName(), Message: s,
	}
}

// addressText is the virtual address of a service, or that it has none.
func addressText(spec *resourcev1.ServiceSpec, address string) string {
	if spec.GetHeadless() {
		return "headless"
	}
	return address
}

func portsText(spec *resourcev1.ServiceSpec) string {
	var ports []string
	for _, p := range spec.GetPorts() {
		ports = append(ports, portText(p))
	}
	return strings.Join(ports, ",")
}

func labelsText(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return strings.Join(all, ",")
}

func affinityText(spec *resourcev1.ServiceSpec) string {
	if spec.GetAffinity() == nil {
		return ""
	}
	return spec.GetAffinity().AsDuration().String()
}

func portText(p *resourcev1.ServicePort) string {
	text := strconv.Itoa(int(p.GetPort()))
	if p.GetName() != "" {
		text = p.GetName() + "=" + text
	}
	if p.GetTargetPort() != 0 {
		text += ":" + strconv.Itoa(int(p.GetTargetPort()))
	}
	if p.GetProtocol() != "" {
		text += "/" + p.GetProtocol()
	}
	if p.GetNodePort() != 0 {
		text += "@" + nodePortText(p)
	}
	return text
}

// nodePortText is a port of the node as --node-port takes it.
func nodePortText(p *resourcev1.ServicePort) string {
	text := strconv.Itoa(int(p.GetNodePort()))
	if p.GetNodeAddress() != "" {
		text = p.GetNodeAddress() + ":" + text
	}
	return text
}

func (a *app) serviceNames(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []string
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	if err := a.withNode(ctx, func(ctx context.Context, n *target.Node) error {
		all, err := n.Services(ctx)
		for _, s := range all {
			names = append(names, s.GetWish().GetName())
		}
		return err
	}); err != nil { // a shell has no place for an error
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return without(names, given), cobra.ShellCompDirectiveNoFileComp
}
