package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"staddle.internal/kit/config"
	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/dns"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// maxEtc bounds how much of a file of the node is copied.
const maxEtc = 64 << 10

// files is the folder with the files that all containers of a sandbox see in
// /etc.
func (e *Engine) files(uid id.Sandbox) string { return filepath.Join(e.pins.Dir(uid), "etc") }

// writeFiles makes the files of names that a sandbox sees. What is there already
// is left: running containers see it.
func (e *Engine) writeFiles(uid id.Sandbox, a engine.Attempt) error {
	dir := e.files(uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make files of sandbox %s: %w", uid, err)
	}
	addrs, err := e.addresses(uid, a)
	if err != nil {
		return err
	}
	contents := map[string][]byte{
		"hosts":       hosts(hostname(a), addrs, a.Wish.GetSpec().GetHosts()),
		"hostname":    []byte(hostname(a) + "\n"),
		"resolv.conf": e.resolvConf(a),
	}
	for name, content := range contents {
		if err := writeOnce(filepath.Join(dir, name), content); err != nil {
			return fmt.Errorf("make files of sandbox %s: %w", uid, err)
		}
	}
	return nil
}

// renewHosts lets the containers of a sandbox that was given another address find it by its own
// name. The file stays the same one: they see it through a mount of it.
func (e *Engine) renewHosts(uid id.Sandbox, a engine.Attempt, addr netip.Addr) error {
	path := filepath.Join(e.files(uid), "hosts")
	have, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && bytes.Contains(have, []byte("\n"+addr.String()+"\t")) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read names of sandbox %s: %w", uid, err)
	}
	addrs, err := e.addresses(uid, a)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, hosts(hostname(a), addrs, a.Wish.GetSpec().GetHosts()), 0o644); err != nil {
		return fmt.Errorf("write names of sandbox %s: %w", uid, err)
	}
	return nil
}

// addresses of a sandbox on the bridge, that of IPv4 first; none with the node's own network.
func (e *Engine) addresses(uid id.Sandbox, a engine.Attempt) ([]netip.Addr, error) {
	if hostNetwork(a) {
		return nil, nil
	}
	return e.network.AddressesOf(uid)
}

// fields are what a sandbox knows of itself, for the environment of one container.
func (e *Engine) fields(a engine.Attempt, c *container) (map[resourcev1.SandboxField]string, error) {
	addrs, err := e.addresses(c.uid, a)
	if err != nil {
		return nil, err
	}
	fields := map[resourcev1.SandboxField]string{
		resourcev1.SandboxField_SANDBOX_FIELD_NAME:      a.Wish.GetName(),
		resourcev1.SandboxField_SANDBOX_FIELD_UID:       string(c.uid),
		resourcev1.SandboxField_SANDBOX_FIELD_NODE:      e.cfg.Node,
		resourcev1.SandboxField_SANDBOX_FIELD_ATTEMPT:   strconv.FormatUint(a.Number, 10),
		resourcev1.SandboxField_SANDBOX_FIELD_HOSTNAME:  hostname(a),
		resourcev1.SandboxField_SANDBOX_FIELD_CONTAINER: c.note.GetContainer(),
	}
	if len(addrs) > 0 {
		fields[resourcev1.SandboxField_SANDBOX_FIELD_ADDRESS] = addrs[0].String()
	}
	return fields, nil
}

// hosts gives a sandbox's own name its addresses, and others what the spec says.
func hosts(name string, addrs []netip.Addr, more []*resourcev1.HostEntry) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for _, addr := range addrs {
		fmt.Fprintf(&b, "%s\t%s\n", addr, name)
	}
	for _, entry := range more {
		fmt.Fprintf(&b, "%s\t%s\n", entry.GetAddress(), strings.Join(entry.GetNames(), " "))
	}
	return b.Bytes()
}

// resolvConf names the name servers of a sandbox: with a network of its own the
// resolver of this node, or what the node itself asks where there is none. What cannot be
// read of the node's files is no reason not to start.
func (e *Engine) resolvConf(a engine.Attempt) []byte {
	if hostNetwork(a) {
		return hostFile(dns.Files[0])
	}
	host := dns.ReadHost(dns.Files, e.cfg.Network.Gateway())
	return resolvFile(e.cfg.Network, host)
}

// hostFile is a file of the node; empty if it cannot be read.
func hostFile(path string) []byte {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return raw[:min(len(raw), maxEtc)]
}

// What resolvers of programs take of a list of domains: those of old ones have 6 with
// 256 bytes (resolv.conf(5)).
const (
	maxSearch      = 6
	maxSearchBytes = 256
)

// resolvFile is the file of a sandbox with an address on the bridge.
func resolvFile(n config.Network, host dns.Host) []byte {
	search := host.Search
	servers := make([]string, 0, len(host.Servers))
	if n.DNS.Disable {
		for _, s := range host.Servers {
			servers = append(servers, s.Addr().String())
		}
	} else {
		servers = append(servers, n.Gateway().String())
		search = append([]string{dns.Zone(n.DNS.Domain)}, search...)
	}
	var b bytes.Buffer
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	size := 0
	for i, domain := range search[:min(len(search), maxSearch)] {
		if size += len(domain) + 1; size > maxSearchBytes {
			search = search[:i]
			break
		}
	}
	if search = search[:min(len(search), maxSearch)]; len(search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(search, " "))
	}
	return b.Bytes()
}

// writeOnce writes a file unless it is there.
func writeOnce(path string, content []byte) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
