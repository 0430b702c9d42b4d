// Package settings owns the schema of coordinator.yaml.
//
// Decoding is strict, and everything wrong is told at once with its line. It
// must never read another file, nor the environment. In the trail it is what the
// coordinator's main opens first.
package settings

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"staddle.internal/kit/config"
	"staddle.internal/kit/id"
)

// FormatVersion is the version of the file that this coordinator reads.
const FormatVersion = 1

// Settings is coordinator.yaml.
type Settings struct {
	// Version of the file's format.
	Version int `yaml:"version"`
	// ListenAddress is host:port of the API.
	ListenAddress string `yaml:"listen_address"`
	// ServerNames are further host names and addresses under which the
	// coordinator is called; they go into its certificate.
	ServerNames []string `yaml:"server_names"`
	// TrustDomain is the domain of all identities.
	TrustDomain string `yaml:"trust_domain"`
	// Etcd is where the cluster's state is.
	Etcd Etcd `yaml:"etcd"`
	// Bootstrap names the identities that the first start writes.
	Bootstrap Bootstrap `yaml:"bootstrap"`
	// RefusedIdentities are let in no more, here and at the gateways of all nodes, although
	// their certificates are valid: kind and name, such as user/alice.
	RefusedIdentities []string `yaml:"refused_identities"`
	// LostGrace is after how long without session a lost node is complained of.
	LostGrace config.Duration `yaml:"lost_grace"`
	// ServicePrefix is the IPv4 network of the virtual addresses of services. The zero
	// Prefix means that the cluster has no services.
	ServicePrefix netip.Prefix `yaml:"service_prefix"`
}

// Etcd is where the cluster's state is.
type Etcd struct {
	// Endpoints as URLs. Empty means an etcd inside the coordinator.
	Endpoints []string `yaml:"endpoints"`
	// CA, Certificate and Key are files for https endpoints.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// Prefix of all keys; it begins and ends with a slash.
	Prefix string `yaml:"prefix"`
}

// Bootstrap names the identities that the first start writes below <etc>/pki.
type Bootstrap struct {
	// Node gets node.crt and node.key. Empty means the name in node.yaml.
	Node string `yaml:"node"`
	// NodeKeyOwner is the numeric user that may read node.key. 0 means the user of
	// clusteraccess in node.yaml, and root if that names none.
	NodeKeyOwner int `yaml:"node_key_owner"`
	// Nodes get nodes/<name>/node.crt, node.key and ca.crt, to be carried to them.
	Nodes []string `yaml:"nodes"`
	// Operator gets operator.crt and operator.key.
	Operator string `yaml:"operator"`
	// OperatorKeyOwner is the numeric user that may read operator.key.
	OperatorKeyOwner int `yaml:"operator_key_owner"`
}

// Default returns what a file means that says only its version.
func Default() Settings {
	return Settings{
		Version:       FormatVersion,
		ListenAddress: config.CoordinatorAddress,
		TrustDomain:   "staddle.local",
		Etcd:          Etcd{Prefix: "/staddle/"},
		Bootstrap:     Bootstrap{Operator: "admin"},
		LostGrace:     config.Duration(60 * time.Second),
		ServicePrefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, 128, 0}), 17),
	}
}

// Load reads the file over the defaults.
func Load(path string) (Settings, error) {
	s := Default()
	data, err := config.ReadFile(path)
	if err != nil {
		return s, err
	}
	return s, config.Decode(path, data, &s)
}

var (
	domain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	// identity is the path of a spiffe:// URI that a certificate of this cluster has.
	identity = regexp.MustCompile(`^(user|node|coordinator)/[^/?#%\s]{1,63}$`)
	prefix   = regexp.MustCompile(`^/([A-Za-z0-9_.-]{1,63}/){1,8}$`)
)

type checks struct{ problems []config.Problem }

func (c *checks) must(ok bool, key, text, remedy string) {
	if !ok {
		c.problems = append(c.problems, config.Problem{Key: key, Text: text, Remedy: remedy})
	}
}

// Validate reports what the types of the fields cannot say.
func (s *Settings) Validate() []config.Problem {
	c := &checks{}
	c.must(s.Version == FormatVersion, "version", fmt.Sprintf("version %d of the file is not known", s.Version), fmt.Sprintf("write %d", FormatVersion))
	host, port, err := net.SplitHostPort(s.ListenAddress)
	n, perr := strconv.Atoi(port)
	c.must(err == nil && perr == nil && host != "" && n >= 0 && n < 65536, "listen_address",
		fmt.Sprintf("%q is no address", s.ListenAddress), "write host:port, like 127.0.0.1:8443")
	for i, name := range s.ServerNames {
		c.must(net.ParseIP(name) != nil || domain.MatchString(name), fmt.Sprintf("server_names[%d]", i),
			fmt.Sprintf("%q is neither host name nor address", name), "write a name in lower case or an IP address, without port")
	}
	c.must(domain.MatchString(s.TrustDomain), "trust_domain", fmt.Sprintf("%q is no domain", s.TrustDomain), "write a name like staddle.local")
	c.must(s.LostGrace.Std() >= time.Second && s.LostGrace.Std() <= 30*24*time.Hour, "lost_grace",
		fmt.Sprintf("%s is out of bounds", s.LostGrace), "write a duration from 1s to 720h")
	p := s.ServicePrefix
	c.must(p == netip.Prefix{} || p.Addr().Is4() && p.Bits() >= 8 && p.Bits() <= 30 && p == p.Masked(), "service_prefix",
		fmt.Sprintf("%q is no network of services", p), `write an IPv4 network between /8 and /30, like 10.78.128.0/17, or "" for none`)
	s.refused(c)
	s.etcd(c)
	s.bootstrap(c)
	return c.problems
}

// maxRefused bounds what each node is told with each renewal of its session.
const maxRefused = 256

func (s *Settings) refused(c *checks) {
	c.must(len(s.RefusedIdentities) <= maxRefused, "refused_identities", fmt.Sprintf("there are %d", len(s.RefusedIdentities)),
		fmt.Sprintf("write at most %d; one whose certificate has ended need not be there", maxRefused))
	for i, who := range s.RefusedIdentities {
		c.must(identity.MatchString(who), fmt.Sprintf("refused_identities[%d]", i), fmt.Sprintf("%q is no identity", who),
			"write user/<name>, node/<name> or coordinator/<name>")
	}
}

func (s *Settings) etcd(c *checks) {
	e := s.Etcd
	for i, text := range e.Endpoints {
		u, err := url.Parse(text)
		c.must(err == nil && (u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname())) && u.Port() != "", fmt.Sprintf("etcd.endpoints[%d]", i),
			fmt.Sprintf("%q cannot be used", text), "write https://host:port; without TLS only loopback is spoken to")
	}
	for key, path := range map[string]string{"etcd.ca": e.CA, "etcd.certificate": e.Certificate, "etcd.key": e.Key} {
		c.must(path == "" || filepath.IsAbs(path), key, fmt.Sprintf("%q is no absolute path", path), "begin it with /")
	}
	c.must((e.Certificate == "") == (e.Key == ""), "etcd.key", "certificate and key go together", "write both or none")
	c.must(prefix.MatchString(e.Prefix), "etcd.prefix", fmt.Sprintf("%q is no prefix", e.Prefix), "write /staddle/ or another path with a slash at both ends")
}

func (s *Settings) bootstrap(c *checks) {
	b := s.Bootstrap
	c.must(b.Node == "" || id.CheckName("", b.Node) == nil, "bootstrap.node", fmt.Sprintf("%q is no name", b.Node), "write lower-case letters, digits and dashes")
	for i, n := range b.Nodes {
		c.must(id.CheckName("", n) == nil, fmt.Sprintf("bootstrap.nodes[%d]", i), fmt.Sprintf("%q is no name", n), "write lower-case letters, digits and dashes")
	}
	c.must(b.Operator != "" && len(b.Operator) <= 63 && !strings.ContainsAny(b.Operator, "/?#% "), "bootstrap.operator",
		fmt.Sprintf("%q is no name", b.Operator), "write a name like admin")
	c.must(b.NodeKeyOwner >= 0 && b.NodeKeyOwner < 1<<31, "bootstrap.node_key_owner", "it is no user id", "write a number from 0")
	c.must(b.OperatorKeyOwner >= 0 && b.OperatorKeyOwner < 1<<31, "bootstrap.operator_key_owner", "it is no user id", "write a number from 0")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
