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

	"staddle.internal/kit/id"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
)

// resolvers are the files that say which name servers this node uses: the second
// is where systemd's resolver, which is on loopback, keeps the real ones.
var resolvers = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

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
	addr, err := e.address(uid, a)
	if err != nil {
		return err
	}
	resolv, err := resolvConf(hostNetwork(a), os.ReadFile)
	if err != nil {
		return fmt.Errorf("make files of sandbox %s: %w", uid, err)
	}
	contents := map[string][]byte{
		"hosts":       hosts(hostname(a), addr, a.Wish.GetSpec().GetHosts()),
		"hostname":    []byte(hostname(a) + "\n"),
		"resolv.conf": resolv,
	}
	for name, content := range contents {
		if err := writeOnce(filepath.Join(dir, name), content); err != nil {
			return fmt.Errorf("make files of sandbox %s: %w", uid, err)
		}
	}
	return nil
}

// address of a sandbox on the bridge; none with the node's own network.
func (e *Engine) address(uid id.Sandbox, a engine.Attempt) (netip.Addr, error) {
	if hostNetwork(a) {
		return netip.Addr{}, nil
	}
	addr, ok, err := e.network.Address(uid)
	if err != nil || !ok {
		return netip.Addr{}, err
	}
	return addr, nil
}

// fields are what a sandbox knows of itself, for the environment of one container.
func (e *Engine) fields(a engine.Attempt, c *container) (map[resourcev1.SandboxField]string, error) {
	addr, err := e.address(c.uid, a)
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
	if addr.IsValid() {
		fields[resourcev1.SandboxField_SANDBOX_FIELD_ADDRESS] = addr.String()
	}
	return fields, nil
}

// hosts gives a sandbox's own name an address, and others what the spec says.
func hosts(name string, addr netip.Addr, more []*resourcev1.HostEntry) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	if addr.IsValid() {
		fmt.Fprintf(&b, "%s\t%s\n", addr, name)
	}
	for _, entry := range more {
		fmt.Fprintf(&b, "%s\t%s\n", entry.GetAddress(), strings.Join(entry.GetNames(), " "))
	}
	return b.Bytes()
}

// resolvConf is the node's file. With a network of its own a sandbox cannot
// reach a name server on the node's loopback, so those are left out.
func resolvConf(hostNetwork bool, read func(string) ([]byte, error)) ([]byte, error) {
	var out []byte
	for _, path := range resolvers {
		raw, err := read(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		raw = raw[:min(len(raw), maxEtc)]
		if hostNetwork {
			return raw, nil
		}
		filtered, servers := withoutLoopback(raw)
		if servers > 0 {
			return filtered, nil
		}
		if out == nil {
			out = filtered
		}
	}
	return out, nil
}

// withoutLoopback drops name servers on loopback, and counts those that stay.
func withoutLoopback(raw []byte) (kept []byte, servers int) {
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == "nameserver" {
			addr, err := netip.ParseAddr(fields[1])
			if err != nil || addr.IsLoopback() {
				continue
			}
			servers++
		}
		kept = append(kept, line...)
	}
	return kept, servers
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
