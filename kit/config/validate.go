package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// pattern is what a text of at most so many bytes looks like. The bound stands beside
// the expression and not in it, where each repetition takes room of its own, in every
// process.
type pattern struct {
	most  int
	shape *regexp.Regexp
}

func newPattern(most int, shape string) pattern { return pattern{most, regexp.MustCompile(shape)} }

// MatchString reports whether s is such a text.
func (p pattern) MatchString(s string) bool { return len(s) <= p.most && p.shape.MatchString(s) }

var label = newPattern(63, `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

func isLabel(s string) bool { return label.MatchString(s) }

// checks collects problems with the keys they belong to.
type checks struct{ problems []Problem }

func (c *checks) must(ok bool, key, text, remedy string) {
	if !ok {
		c.problems = append(c.problems, Problem{Key: key, Text: text, Remedy: remedy})
	}
}

func (c *checks) between(key string, d Duration, least, most time.Duration) {
	c.must(d.Std() >= least && d.Std() <= most, key, fmt.Sprintf("%s is out of bounds", d),
		fmt.Sprintf("write a duration from %s to %s", Duration(least), Duration(most)))
}

func (c *checks) label(key, s string) {
	c.must(isLabel(s), key, fmt.Sprintf("%q is no name", s),
		"write 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends")
}

func (c *checks) address(key, s string) {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.Atoi(port)
	c.must(err == nil && perr == nil && host != "" && n > 0 && n < 65536, key,
		fmt.Sprintf("%q is no address", s), "write host:port, like 127.0.0.1:8443")
}

func (c *checks) absolute(key, s string) {
	c.must(s == "" || filepath.IsAbs(s), key, fmt.Sprintf("%q is no absolute path", s), "begin it with /")
}

// Validate reports everything that the types of the fields cannot say.
func (n *Node) Validate() []Problem {
	c := &checks{}
	c.must(n.Version == FormatVersion, "version", fmt.Sprintf("version %d of the file is not known", n.Version),
		fmt.Sprintf("write %d", FormatVersion))
	c.label("name", n.Name)
	c.labels(n.Labels)
	c.address("coordinator.address", n.Coordinator.Address)
	c.absolute("coordinator.ca", n.Coordinator.CA)
	c.absolute("coordinator.certificate", n.Coordinator.Certificate)
	c.absolute("coordinator.key", n.Coordinator.Key)
	c.gateway(n.ListenAddress, n.AdvertiseAddress)
	c.absolute("containerd.address", n.Containerd.Address)
	c.label("containerd.namespace", n.Containerd.Namespace)
	c.network(n.Network)
	c.userNamespaces(n.UserNamespaces)
	c.allowed(n)
	c.images(n.Images)
	c.imageGC(n.Images.GC)
	c.pressure(n.Pressure)
	c.logs(n.Logs)
	c.metrics(n.Metrics)
	c.must(n.Sandboxes.CgroupParent == "" || slicePath.MatchString(n.Sandboxes.CgroupParent), "sandboxes.cgroup_parent",
		fmt.Sprintf("%q is no cgroup", n.Sandboxes.CgroupParent), "write a name like staddle.slice")
	c.between("sandboxes.boot_hold", n.Sandboxes.BootHold, 0, time.Hour)
	c.between("sandboxes.tidy_period", n.Sandboxes.TidyPeriod, time.Second, time.Hour)
	c.between("presence.session_ttl", n.Presence.SessionTTL, 5*time.Second, 10*time.Minute)
	c.between("presence.hold_down", n.Presence.HoldDown, 0, time.Minute)
	c.must(n.Users.FirstID == 0 || n.Users.FirstID >= 100 && n.Users.FirstID <= 1<<30, "users.first_id",
		fmt.Sprintf("%d is out of bounds", n.Users.FirstID), "write 0, or a number from 100 to 1073741824")
	c.must(n.Users.NamePrefix == "" || namePrefix.MatchString(n.Users.NamePrefix), "users.name_prefix",
		fmt.Sprintf("%q begins no user's name", n.Users.NamePrefix), "write 1 to 18 lower-case letters, digits, dashes and underscores, like staddle-")
	c.must(n.Users.NamePrefix == "" || n.Users.FirstID == 0, "users.name_prefix", "users are given by number already", "remove it, or first_id")
	c.supervisor(n.Supervisor)
	return append(c.problems, n.graphProblems()...)
}

var (
	slicePath  = newPattern(128, `^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	device     = newPattern(15, `^[a-z][a-z0-9.-]*$`)
	labelKey   = newPattern(128, `^[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?$`)
	labelValue = newPattern(63, `^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$`)
	namePrefix = newPattern(18, `^[a-z_][a-z0-9_-]*$`) // a user's name has 32 characters at most
	domain     = newPattern(63, `^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
	capability = newPattern(44, `^CAP_[A-Z_][A-Z_]+$`)
)

func (c *checks) labels(labels map[string]string) {
	c.must(len(labels) <= 64, "labels", fmt.Sprintf("%d labels are too many", len(labels)), "write at most 64")
	for k, v := range labels {
		c.must(labelKey.MatchString(k) && labelValue.MatchString(v), "labels."+k, fmt.Sprintf("%q: %q is no label", k, v),
			"use letters, digits, dashes, dots and underscores, with a letter or digit at both ends")
	}
}

// metrics are given to whoever asks, so that only this machine may.
func (c *checks) metrics(m Metrics) {
	if m.ListenAddress == "" {
		return
	}
	at, err := netip.ParseAddrPort(m.ListenAddress)
	c.must(err == nil && at.Port() > 0 && at.Addr().IsLoopback(), "metrics.listen_address", fmt.Sprintf("%q is no address of loopback", m.ListenAddress),
		"write one like 127.0.0.1:9464: figures are given to whoever asks; for other machines put something in front that knows who does")
}

func (c *checks) network(n Network) {
	c.must(device.MatchString(n.Bridge), "network.bridge", fmt.Sprintf("%q is no device name", n.Bridge),
		"write 1 to 15 lower-case letters, digits, dots and dashes")
	ok := n.Subnet.IsValid() && n.Subnet.Addr().Is4() && n.Subnet.Bits() >= 8 && n.Subnet.Bits() <= 28
	c.must(ok, "network.subnet", fmt.Sprintf("%s is no usable network", n.Subnet),
		"write an IPv4 network from /8 to /28, like 10.77.0.0/16")
	c.must(!ok || n.Subnet == n.Subnet.Masked(), "network.subnet", fmt.Sprintf("%s has host bits", n.Subnet),
		"write "+n.Subnet.Masked().String())
	c.subnet6(n)
	c.services(n)
	c.routable(n)
	c.dns(n)
	c.nodePorts(n)
	c.groupRules(n)
}

// subnet6: every address of the subnet has one there.
func (c *checks) subnet6(n Network) {
	p := n.Subnet6
	if p == (netip.Prefix{}) {
		return
	}
	ok := p.IsValid() && p.Addr().Is6() && !p.Addr().Is4In6() && p.Bits() >= 48 && p.Bits() <= 112
	c.must(ok, "network.subnet6", fmt.Sprintf("%s is no usable network", p), "write an IPv6 network from /48 to /112, like fd4e:7a1b:9c20::/64")
	c.must(!ok || p == p.Masked(), "network.subnet6", fmt.Sprintf("%s has host bits", p), "write "+p.Masked().String())
	special := ok && (p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() || p.Addr().IsLoopback() || p.Addr().IsUnspecified())
	c.must(!special, "network.subnet6", fmt.Sprintf("%s is for another use", p), "write one of your own networks, or one of fd00::/8 (RFC 4193)")
	small := ok && n.Subnet.IsValid() && n.Subnet.Addr().Is4() && 128-p.Bits() < 32-n.Subnet.Bits()
	c.must(!small, "network.subnet6", fmt.Sprintf("%s has fewer addresses than subnet %s", p, n.Subnet), "write a larger one, like "+netip.PrefixFrom(p.Addr(), 64).Masked().String())
}

func (c *checks) services(n Network) {
	all := n.ServicePrefixes
	c.must(len(all) <= 4, "network.service_prefixes", fmt.Sprintf("%d networks are too many", len(all)), "write at most 4")
	for i, p := range all {
		key := fmt.Sprintf("network.service_prefixes[%d]", i)
		ok := p.IsValid() && p.Addr().Is4() && p.Bits() >= 8 && p.Bits() <= 30 && p == p.Masked()
		c.must(ok, key, fmt.Sprintf("%s is no network for services", p), "write an IPv4 network from /8 to /30 without host bits, like 10.78.0.0/16")
		for _, other := range append([]netip.Prefix{n.Subnet}, all[:i]...) {
			c.must(!ok || !other.IsValid() || !p.Overlaps(other), key, fmt.Sprintf("%s overlaps %s", p, other), "write a network that is used for nothing else")
		}
	}
}

// maxRoutable bounds the rules that every new connection to the outside is compared with.
const maxRoutable = 16

// routable networks may have the subnet in them: a company's is often all of 10.0.0.0/8.
func (c *checks) routable(n Network) {
	c.must(len(n.IPv4Routable) <= maxRoutable, "network.ipv4_routable", fmt.Sprintf("%d networks are too many", len(n.IPv4Routable)),
		fmt.Sprintf("write at most %d", maxRoutable))
	for i, p := range n.IPv4Routable {
		key := fmt.Sprintf("network.ipv4_routable[%d]", i)
		ok := p.IsValid() && p.Addr().Is4()
		c.must(ok, key, fmt.Sprintf("%s is no IPv4 network", p), "write a network that knows the way to the sandboxes, like 10.0.0.0/8")
		c.must(!ok || p == p.Masked(), key, fmt.Sprintf("%s has host bits", p), "write "+p.Masked().String())
	}
}

func (c *checks) dns(n Network) {
	c.must(domain.MatchString(n.DNS.Domain), "network.dns.domain", fmt.Sprintf("%q is no domain for names of sandboxes", n.DNS.Domain),
		"write two or more labels of lower-case letters, digits and dashes, like staddle.internal")
	c.must(len(n.DNS.Upstreams) <= 6, "network.dns.upstreams", fmt.Sprintf("%d servers are too many", len(n.DNS.Upstreams)), "write at most 6")
	for i, text := range n.DNS.Upstreams {
		key := fmt.Sprintf("network.dns.upstreams[%d]", i)
		at, ok := parseServer(text)
		c.must(ok, key, fmt.Sprintf("%q is no name server", text), "write an address, or address:port, like 192.0.2.53")
		c.must(!ok || !n.Subnet.IsValid() || at.Addr().Unmap() != n.Gateway(), key, text+" is this resolver itself", "write the server that knows the other names")
	}
}

// userNamespaces: the id 4294967295 means nobody to the kernel.
func (c *checks) userNamespaces(u UserNamespaces) {
	c.must(u.FirstID >= IDRange && u.FirstID%IDRange == 0, "user_namespaces.first_id",
		fmt.Sprintf("%d is no begin of a range", u.FirstID), fmt.Sprintf("write a multiple of %d, like 1879048192", IDRange))
	ok := u.Ranges >= 0 && u.Ranges <= 1<<14
	c.must(ok, "user_namespaces.ranges", fmt.Sprintf("%d is out of bounds", u.Ranges), "write a number from 0 to 16384")
	most := (math.MaxUint32 - uint64(u.FirstID)) / IDRange
	c.must(!ok || uint64(u.Ranges) <= most, "user_namespaces.ranges", fmt.Sprintf("%d ranges end behind the last id", u.Ranges),
		fmt.Sprintf("write %d or less, or a lower first_id", most))
}

func (c *checks) images(i Images) {
	for k, host := range i.PlainHTTP {
		c.must(host != "" && len(host) <= 255 && !strings.ContainsFunc(host, notOfHost),
			fmt.Sprintf("images.plain_http[%d]", k), fmt.Sprintf("%q is no registry host", host), "write host or host:port")
	}
	c.absolute("images.registry_dir", i.RegistryDir)
	c.absolute("images.auth_file", i.AuthFile)
	c.number("images.max_pulls", i.MaxPulls, 1, 64)
	c.number("images.max_layers", i.MaxLayers, 1, 32)
	c.between("images.stall_timeout", i.StallTimeout, time.Second, 10*time.Minute)
}

func notOfHost(r rune) bool { return r == '/' || r == '@' || unicode.IsSpace(r) }

func (c *checks) supervisor(s Supervisor) {
	c.must(s.Composition == CompositionNode || s.Composition == CompositionMachine, "supervisor.composition",
		fmt.Sprintf("%q is not known", s.Composition), "write node or machine")
	c.between("supervisor.start_timeout", s.StartTimeout, time.Second, time.Hour)
	c.between("supervisor.stop_timeout", s.StopTimeout, time.Second, time.Hour)
	c.must(s.StopMode == StopKeep || s.StopMode == StopDrain, "supervisor.stop_mode", fmt.Sprintf("%q is not known", s.StopMode), "write keep or drain")
	c.between("supervisor.drain_timeout", s.DrainTimeout, 0, 24*time.Hour)
	c.between("supervisor.backoff.initial", s.Backoff.Initial, time.Millisecond, time.Minute)
	c.between("supervisor.backoff.cap", s.Backoff.Cap, s.Backoff.Initial.Std(), time.Hour)
	c.between("supervisor.backoff.stable", s.Backoff.Stable, time.Second, 24*time.Hour)
	seen := map[string]bool{}
	for i, comp := range s.Components {
		key := fmt.Sprintf("supervisor.components[%d]", i)
		c.component(key, comp)
		c.must(!seen[comp.Name], key+".name", fmt.Sprintf("component %q is listed twice", comp.Name), "join the two")
		seen[comp.Name] = true
	}
}

func (c *checks) component(key string, comp Component) {
	c.label(key+".name", comp.Name)
	if comp.StartTimeout != 0 {
		c.between(key+".start_timeout", comp.StartTimeout, time.Second, time.Hour)
	}
	if comp.StopTimeout != 0 {
		c.between(key+".stop_timeout", comp.StopTimeout, time.Second, time.Hour)
	}
	known := slices.ContainsFunc(members(), func(m Component) bool { return m.Name == comp.Name })
	c.must(known || comp.Disabled || len(comp.Command) > 0, key+".command", "a component of your own has no command",
		"write its program and arguments as a list")
	c.must(len(comp.Command) == 0 || comp.Command[0] != "", key+".command", "the program is empty", "write its path")
	for i, name := range comp.Capabilities {
		c.must(capability.MatchString(name), fmt.Sprintf("%s.capabilities[%d]", key, i),
			fmt.Sprintf("%q is no capability", name), "write a name like CAP_NET_ADMIN")
	}
}

// graphProblems reports needs that name nothing, and circles.
func (n *Node) graphProblems() []Problem {
	c := &checks{}
	names := []string{ContainerdName, "coordinator"}
	edges := map[string][]string{}
	for _, comp := range n.Graph() {
		names = append(names, comp.Name)
		edges[comp.Name] = append(slices.Clone(comp.Needs), comp.OrderOnly...)
	}
	for i, comp := range n.Supervisor.Components {
		names = append(names, comp.Name) // a disabled one may be named
		for _, need := range append(slices.Clone(comp.Needs), comp.OrderOnly...) {
			c.must(slices.Contains(names, need) || n.listed(need), fmt.Sprintf("supervisor.components[%d]", i),
				fmt.Sprintf("%s needs %q, which is no component", comp.Name, need), nearestRemedy(need, names))
		}
	}
	if circle := findCircle(edges); circle != "" {
		c.must(false, "supervisor.components", "components need each other in a circle: "+circle, "remove one of these needs")
	}
	return c.problems
}

func (n *Node) listed(name string) bool {
	return slices.ContainsFunc(n.Supervisor.Components, func(c Component) bool { return c.Name == name })
}

func nearestRemedy(name string, names []string) string {
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf("the nearest known component is %q", near)
	}
	return "name a component of this node"
}
