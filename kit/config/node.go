// Package config owns the schema of node.yaml, the places of files, and the
// strict decoder that every file of ours goes through.
//
// All processes of a node read the same file; each uses its section. A file is
// taken whole or refused whole: unknown keys, wrong types, doubled keys and
// values out of bounds are reported together, each with file, line, key and what
// to write instead. It must never fall back to a default because a value could
// not be read, and never read the environment. Precedence is defaults, then
// file, then flags; flags are applied by kit/process.
package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// FormatVersion is the only version of node.yaml that this release reads.
const FormatVersion = 1

// Node is the whole of node.yaml.
type Node struct {
	// Version of the file's format; must be 1.
	Version int `yaml:"version"`
	// Name of the node, a DNS label. Default: the host name's first label.
	Name string `yaml:"name"`
	// Labels of the node.
	Labels map[string]string `yaml:"labels"`
	// Coordinator says how to reach the cluster.
	Coordinator Coordinator `yaml:"coordinator"`
	// ListenAddress is host:port on which the gateway takes calls from other
	// machines. Empty means that there is no gateway.
	ListenAddress string `yaml:"listen_address"`
	// AdvertiseAddress is host:port at which others reach the gateway. Empty means
	// what follows from ListenAddress; see GatewayAddress.
	AdvertiseAddress string `yaml:"advertise_address"`
	// Containerd is the runtime engine.
	Containerd Containerd `yaml:"containerd"`
	// Network is the node's own sandbox network.
	Network Network `yaml:"network"`
	// UserNamespaces are the ids for sandboxes with a user namespace.
	UserNamespaces UserNamespaces `yaml:"user_namespaces"`
	// AllowHostNetwork lets sandboxes ask for the host's network.
	AllowHostNetwork bool `yaml:"allow_host_network"`
	// AllowPrivileged lets sandboxes ask for all that root of the node can do.
	AllowPrivileged bool `yaml:"allow_privileged"`
	// AllowUnconfined lets sandboxes do without the filter of system calls and
	// without AppArmor.
	AllowUnconfined bool `yaml:"allow_unconfined"`
	// AllowHostPaths lists the folders of the node, or files, that sandboxes may
	// mount, with all that is in them. At most 64 absolute, clean paths.
	AllowHostPaths []string `yaml:"allow_host_paths"`
	// AllowDevices lists the devices that sandboxes may use: a path below /dev, or one
	// that ends with / for all that is in a folder. At most 64.
	AllowDevices []string `yaml:"allow_devices"`
	// AllowCapabilities lists capabilities that sandboxes may add beyond those that
	// docker gives, like NET_ADMIN. At most 64.
	AllowCapabilities []string `yaml:"allow_capabilities"`
	// AllowSysctls lists parameters of the kernel that sandboxes may set in their
	// namespaces beyond those known to be harmless: a name, or one that ends with * for
	// all that begin so. At most 64.
	AllowSysctls []string `yaml:"allow_sysctls"`
	// Images bounds where images come from.
	Images Images `yaml:"images"`
	// Pressure says when the node takes no new sandboxes because it runs short.
	Pressure Pressure `yaml:"pressure"`
	// Logs bounds what the node keeps of workloads' output.
	Logs Logs `yaml:"logs"`
	// Metrics says where collectors ask for what the node and its sandboxes use.
	Metrics Metrics `yaml:"metrics"`
	// Sandboxes holds what is common to all sandboxes.
	Sandboxes Sandboxes `yaml:"sandboxes"`
	// Presence is the registration of the node.
	Presence Presence `yaml:"presence"`
	// Users says which system users are which process.
	Users Users `yaml:"users"`
	// Supervisor is the boot graph.
	Supervisor Supervisor `yaml:"supervisor"`
}

// Coordinator is the link to the cluster. Empty paths lie below <etc>/pki.
type Coordinator struct {
	// Address is host:port of the coordinator.
	Address string `yaml:"address"`
	// CA is the file with the cluster's CA certificates.
	CA string `yaml:"ca"`
	// Certificate is the node's certificate file.
	Certificate string `yaml:"certificate"`
	// Key is the node's private key file.
	Key string `yaml:"key"`
}

// Containerd is the runtime engine of the node.
type Containerd struct {
	// Managed means that the supervisor starts it.
	Managed bool `yaml:"managed"`
	// Address is its socket. Empty means <run>/containerd.sock.
	Address string `yaml:"address"`
	// Namespace in which our containers live.
	Namespace string `yaml:"namespace"`
}

// Network is the sandbox network of the node.
type Network struct {
	// Bridge is the name of the bridge device, at most 15 bytes.
	Bridge string `yaml:"bridge"`
	// Subnet is the IPv4 network of sandboxes; its first address is the gateway.
	Subnet netip.Prefix `yaml:"subnet"`
	// Subnet6 is the IPv6 network of sandboxes, from /48 to /112 and at least as large as
	// Subnet; its first address is the gateway. Unset means that they have no IPv6.
	Subnet6 netip.Prefix `yaml:"subnet6"`
	// ServicePrefixes are the IPv4 networks of the virtual addresses of services: at most
	// 4, apart from each other and from Subnet. None means that there are no services.
	ServicePrefixes []netip.Prefix `yaml:"service_prefixes"`
	// IPv4Routable are the networks that know the way to the sandboxes of this node, at most
	// 16: what sandboxes send there carries their own address in place of the node's. None
	// means that it carries the node's everywhere.
	IPv4Routable []netip.Prefix `yaml:"ipv4_routable"`
	// DisableLocalNet means that published ports and node ports of services are not reached
	// at loopback addresses of the node, and that its bridge routes no such address.
	DisableLocalNet bool `yaml:"disable_local_net"`
	// Disable means that there is no sandbox network on this node.
	Disable bool `yaml:"disable"`
	// DNS is the resolver of the sandboxes on that network.
	DNS DNS `yaml:"dns"`
	// AllowMetadata lets sandboxes reach link-local addresses, 169.254.0.0/16, where clouds
	// tell every program of a machine who the machine is. Unset means that they are refused.
	AllowMetadata bool `yaml:"allow_metadata"`
	// AllowNodePorts are the ports of the node itself that sandboxes reach, at every address
	// of it: at most 64, each like tcp/8080 or udp/5000-5010. Beside them they reach its
	// resolver, what is published, and services.
	AllowNodePorts []string `yaml:"allow_node_ports"`
	// GroupRules are what sandboxes of one network group reach of those of another: at most
	// 64. None means that nothing passes between groups.
	GroupRules []GroupRule `yaml:"group_rules"`
}

// GroupRule lets sandboxes of one network group open connections to those of another. The
// group "default" has the sandboxes that name none, and "*" stands for every group.
type GroupRule struct {
	// From is the group of those that open connections.
	From string `yaml:"from"`
	// To is the group of those that they reach.
	To string `yaml:"to"`
	// Ports of those in To, at most 16, each like tcp/5432 or udp/5000-5010. None means
	// every port and protocol.
	Ports []string `yaml:"ports"`
}

// DNS is the resolver of a node's sandboxes, which listens at the gateway.
type DNS struct {
	// Domain of the names of sandboxes, which are NAME.sandbox.<domain>: at least two
	// labels, at most 63 bytes.
	Domain string `yaml:"domain"`
	// Upstreams are the servers that are asked for all other names: at most 6, each an
	// address or address:port. Empty means those of the node.
	Upstreams []string `yaml:"upstreams"`
	// Disable means that there is no resolver: sandboxes ask the servers of the node.
	Disable bool `yaml:"disable"`
}

// dnsPort is that of name servers.
const dnsPort = 53

// Servers are the upstreams with their ports. What is no server is left out.
func (d DNS) Servers() []netip.AddrPort {
	var all []netip.AddrPort
	for _, text := range d.Upstreams {
		if at, ok := parseServer(text); ok {
			all = append(all, at)
		}
	}
	return all
}

func parseServer(text string) (netip.AddrPort, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, dnsPort), !addr.IsUnspecified()
	}
	at, err := netip.ParseAddrPort(text)
	return at, err == nil && at.Port() != 0 && !at.Addr().IsUnspecified()
}

// Gateway is the node's own address on the network: the first one.
func (n Network) Gateway() netip.Addr { return n.Subnet.Masked().Addr().Next() }

// UserNamespaces are the ids of users and groups that sandboxes with a user namespace
// have on the node: ranges of IDRange ids, one after the other. Nobody else may have
// them, nor another node on the same machine.
type UserNamespaces struct {
	// FirstID is the first id of the first range; a multiple of IDRange, at least that.
	FirstID uint32 `yaml:"first_id"`
	// Ranges is how many sandboxes may have one at a time; 0 to 16384. 0 means that
	// there are no user namespaces.
	Ranges int `yaml:"ranges"`
}

// IDRange is how many ids a sandbox with a user namespace has.
const IDRange = 1 << 16

// Images bounds where images come from.
type Images struct {
	// PlainHTTP lists registry hosts (host or host:port) that may be spoken to
	// without TLS. Loopback always may.
	PlainHTTP []string `yaml:"plain_http"`
	// RegistryDir is the folder that says how each registry is reached: one folder per
	// registry, with a hosts.toml or certificates, in the layout of containerd. It is
	// read at each pull; one that is not there says nothing. Empty means
	// <etc>/certs.d.
	RegistryDir string `yaml:"registry_dir"`
	// AuthFile holds the credentials for registries, in the layout of docker's
	// config.json. It is read when a registry asks for credentials; one that is not there
	// holds none. Empty means <etc>/auth.json.
	AuthFile string `yaml:"auth_file"`
	// MaxPulls is how many images are pulled at once, 1 to 64; others wait their turn.
	MaxPulls int `yaml:"max_pulls"`
	// MaxLayers is how many layers of one image are fetched at once, 1 to 32.
	MaxLayers int `yaml:"max_layers"`
	// StallTimeout is after how long without a byte a transfer is given up; 1s to 10m.
	StallTimeout Duration `yaml:"stall_timeout"`
	// GC says when images are removed by themselves.
	GC ImageGC `yaml:"gc"`
}

// ImageGC says when images that nothing needs are removed.
type ImageGC struct {
	// HighPercent of the filesystem that holds images in use, of its bytes or inodes,
	// begins a cleaning, 1 to 100; 0 means that use begins none.
	HighPercent int `yaml:"high_percent"`
	// LowPercent ends it; 0 to HighPercent.
	LowPercent int `yaml:"low_percent"`
	// MinFree begins one as well when less is free, and what would bring an image is
	// refused while that does not help; up to 1TiB.
	MinFree Size `yaml:"min_free"`
	// MinAge is for how long an image stays after its last use; up to 8760h.
	MinAge Duration `yaml:"min_age"`
	// MaxAge is after how long without use an image goes whatever the disk looks like,
	// MinAge to 87600h; 0s means never.
	MaxAge Duration `yaml:"max_age"`
	// ImportGrace is for how long an imported image stays; up to 87600h.
	ImportGrace Duration `yaml:"import_grace"`
}

// Pressure says when the node runs short of what it has. 0 turns a measure off.
type Pressure struct {
	// MemoryMinFree is the memory that has to be available; up to 1TiB.
	MemoryMinFree Size `yaml:"memory_min_free"`
	// MemoryStallPercent is for which share of ten seconds all may wait for memory, where
	// the kernel says; 0 to 100.
	MemoryStallPercent int `yaml:"memory_stall_percent"`
	// DiskMinFree is what has to be free on the filesystems of the node's state and
	// images; up to 1TiB.
	DiskMinFree Size `yaml:"disk_min_free"`
	// DiskMinFreePercent is the same as a share, of bytes and of inodes; 0 to 50.
	DiskMinFreePercent int `yaml:"disk_min_free_percent"`
	// PIDMinFreePercent is the share of process ids that has to be free; 0 to 50.
	PIDMinFreePercent int `yaml:"pid_min_free_percent"`
	// Hold is for how long all has to be well before a pressure is over; up to 1h.
	Hold Duration `yaml:"hold"`
}

// Logs bounds the output that is kept.
type Logs struct {
	// MaxSizePerStream is kept per stream; 64KiB to 1TiB.
	MaxSizePerStream Size `yaml:"max_size_per_stream"`
	// KeepAttempts is of how many attempts of one container output is kept; 1 to 1000.
	KeepAttempts int `yaml:"keep_attempts"`
	// KeepRemoved is for how long the output of removed sandboxes is kept; up to 87600h.
	// 0s means that it goes with them, once all of it was exported.
	KeepRemoved Duration `yaml:"keep_removed"`
	// MaxSizeRemoved bounds the output of all removed sandboxes; 64KiB to 1TiB.
	MaxSizeRemoved Size `yaml:"max_size_removed"`
	// CRI is the export as files in the format of CRI.
	CRI LogsCRI `yaml:"cri"`
	// OTLP is the export over OTLP.
	OTLP LogsOTLP `yaml:"otlp"`
}

// LogsOTLP is the export of output to a collector, over OTLP by gRPC.
type LogsOTLP struct {
	// Endpoint is host:port of the collector. Empty means that there is no such export.
	Endpoint string `yaml:"endpoint"`
	// CA is the file with the certificates that the collector's is checked against. Empty
	// means those of the system.
	CA string `yaml:"ca"`
	// HeadersFile holds what is sent along, "name: value" a line. Empty means nothing.
	HeadersFile string `yaml:"headers_file"`
	// Insecure means without TLS, which only an address of loopback may be.
	Insecure bool `yaml:"insecure"`
}

// LogsCRI is the export of output as files that shippers for Kubernetes read.
type LogsCRI struct {
	// Directory is the folder, an absolute path and of this node alone. Empty means that
	// there is no such export.
	Directory string `yaml:"directory"`
	// MaxSize of one file; 64KiB to 1TiB.
	MaxSize Size `yaml:"max_size"`
	// MaxFiles of one attempt of a container, 2 to 1000.
	MaxFiles int `yaml:"max_files"`
}

// Metrics is the endpoint for Prometheus.
type Metrics struct {
	// ListenAddress is host:port on loopback. Empty means that there is none.
	ListenAddress string `yaml:"listen_address"`
}

// Sandboxes holds what is common to all sandboxes.
type Sandboxes struct {
	// CgroupParent is the cgroup below which all workloads of this node live, and
	// none of another's.
	CgroupParent string `yaml:"cgroup_parent"`
	// BootHold is how long starts after a reboot wait for the coordinator.
	BootHold Duration `yaml:"boot_hold"`
	// TidyPeriod is how often sandboxhost looks for what is left over of sandboxes.
	TidyPeriod Duration `yaml:"tidy_period"`
}

// Presence is the registration of the node.
type Presence struct {
	// SessionTTL is after how long without renewal the session is lost.
	SessionTTL Duration `yaml:"session_ttl"`
	// HoldDown is how long a crashed capability may be away before READY falls.
	HoldDown Duration `yaml:"hold_down"`
}

// DefaultNode returns the complete configuration of a node whose file says only
// its version. What depends on the root is empty until Resolve.
func DefaultNode() Node {
	return Node{
		Version:       FormatVersion,
		Name:          hostLabel(),
		Coordinator:   Coordinator{Address: CoordinatorAddress},
		ListenAddress: GatewayDefault,
		Containerd:    Containerd{Managed: true, Namespace: "staddle"},
		Network: Network{
			Bridge: "staddle0",
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, 0}), 16),
			// Beside the subnet, for the same reason; nothing is routed there without a service.
			ServicePrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, 0, 0}), 16)},
			DNS:             DNS{Domain: "staddle.internal"}, // .internal is for private use and never delegated
		},
		// systemd's list of ids has nobody there, and useradd ends long before.
		UserNamespaces: UserNamespaces{FirstID: 0x7000_0000, Ranges: 1024},
		Images: Images{MaxPulls: 3, MaxLayers: 3, StallTimeout: Duration(30 * time.Second), GC: ImageGC{
			HighPercent: 85, LowPercent: 80, MinFree: 256 << 20,
			MinAge: Duration(10 * time.Minute), ImportGrace: Duration(7 * 24 * time.Hour),
		}},
		Pressure: Pressure{
			MemoryMinFree: 100 << 20, MemoryStallPercent: 40,
			DiskMinFree: 128 << 20, DiskMinFreePercent: 3, PIDMinFreePercent: 5,
			Hold: Duration(time.Minute),
		},
		Logs:      Logs{MaxSizePerStream: 64 << 20, KeepAttempts: 5, KeepRemoved: Duration(24 * time.Hour), MaxSizeRemoved: 1 << 30, CRI: LogsCRI{MaxSize: 10 << 20, MaxFiles: 5}},
		Metrics:   Metrics{ListenAddress: MetricsDefault},
		Sandboxes: Sandboxes{BootHold: Duration(15 * time.Second), TidyPeriod: Duration(5 * time.Minute)},
		Presence: Presence{
			SessionTTL: Duration(15 * time.Second),
			HoldDown:   Duration(5 * time.Second),
		},
		Users: Users{AdminGroup: "staddle-admin"},
		Supervisor: Supervisor{
			Composition:  CompositionNode,
			StartTimeout: Duration(60 * time.Second),
			StopTimeout:  Duration(10 * time.Second),
			StopMode:     StopKeep,
			DrainTimeout: Duration(5 * time.Minute),
			Backoff: Backoff{
				Initial: Duration(100 * time.Millisecond),
				Cap:     Duration(10 * time.Second),
				Stable:  Duration(60 * time.Second),
			},
		},
	}
}

// hostLabel is the first label of the host name, lower-cased; "node" where the
// system has no name that is a label.
func hostLabel() string {
	host, err := os.Hostname()
	if err != nil {
		return "node"
	}
	label, _, _ := strings.Cut(strings.ToLower(host), ".")
	if !isLabel(label) {
		return "node"
	}
	return label
}

// LoadNode reads node.yaml over the defaults. Everything wrong with it, also its
// absence, is one *Error. Call Resolve before using what depends on the root.
func LoadNode(path string) (*Node, error) {
	n := DefaultNode()
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := Decode(path, data, &n); err != nil {
		return nil, err
	}
	return &n, nil
}

// Resolve fills in the paths and the cgroup that the file left out.
func (n *Node) Resolve(p Paths) {
	fill := func(field *string, path string) {
		if *field == "" {
			*field = path
		}
	}
	pki := filepath.Join(p.Etc(), "pki")
	fill(&n.Coordinator.CA, filepath.Join(pki, "ca.crt"))
	fill(&n.Coordinator.Certificate, filepath.Join(pki, "node.crt"))
	fill(&n.Coordinator.Key, filepath.Join(pki, "node.key"))
	fill(&n.Images.RegistryDir, filepath.Join(p.Etc(), "certs.d"))
	fill(&n.Images.AuthFile, filepath.Join(p.Etc(), "auth.json"))
	fill(&n.Containerd.Address, filepath.Join(p.Run(), "containerd.sock"))
	fill(&n.Sandboxes.CgroupParent, p.WorkloadCgroup())
}
