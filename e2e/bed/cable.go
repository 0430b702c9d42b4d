package bed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"staddle.internal/kit/config"
)

// The network between a machine with a coordinator and its node.
const (
	lanBridge      = "lan"
	cable          = "uplink"
	lanCoordinator = "192.0.2.1"
	lanNode        = "192.0.2.2"
	lanSecond      = "192.0.2.3" // of a node with another name
	lanAPI         = lanCoordinator + ":8443"
)

// complete fills in what follows from what was asked for.
func (o *Options) complete() {
	if o.Name == "" {
		o.Name = NodeName
	}
	if o.Composition == "" {
		o.Composition = config.CompositionMachine
	}
	if o.Cluster != nil {
		o.Composition = config.CompositionNode
	}
	if o.Lan {
		o.Disabled = append([]string{"containerd", "clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence"}, o.Disabled...)
		o.Coordinator += "\nlisten_address: " + lanAPI
	}
	if o.Lan || o.Cluster != nil {
		o.Node += "\ncoordinator: {address: \"" + lanAPI + "\"}"
	}
}

// clustered says whether the bed's node belongs to a coordinator.
func (b *Bed) clustered() bool {
	return b.opts.Composition == config.CompositionMachine || b.opts.Cluster != nil
}

// layCables gives the bed the network that its place in a cluster needs, and a
// node the identity that the coordinator's machine wrote for it.
func (b *Bed) layCables() {
	b.t.Helper()
	if b.opts.Lan {
		b.command("ip", "-n", b.NS, "link", "add", lanBridge, "type", "bridge")
		b.command("ip", "-n", b.NS, "addr", "add", lanCoordinator+"/24", "dev", lanBridge)
		b.command("ip", "-n", b.NS, "link", "set", lanBridge, "up")
	}
	if b.opts.Cluster == nil {
		return
	}
	far := b.opts.Cluster
	b.command("ip", "-n", b.NS, "link", "add", cable, "type", "veth", "peer", "name", b.NS, "netns", far.NS)
	b.command("ip", "-n", far.NS, "link", "set", b.NS, "master", lanBridge, "up")
	b.command("ip", "-n", b.NS, "addr", "add", b.address()+"/24", "dev", cable)
	b.command("ip", "-n", b.NS, "link", "set", cable, "up")
	pki := func(of *Bed, name string) string { return filepath.Join(of.Paths.Etc(), "pki", name) }
	b.must(os.MkdirAll(pki(b, ""), 0o755))
	for _, name := range []string{"ca.crt", "operator.crt", "operator.key"} {
		b.must(copyFile(pki(far, name), pki(b, name)))
	}
	carried := "" // where the bootstrap wrote what is for this node
	if b.opts.Name != NodeName {
		carried = filepath.Join("nodes", b.opts.Name)
	}
	for _, name := range []string{"node.crt", "node.key"} {
		b.must(copyFile(pki(far, filepath.Join(carried, name)), pki(b, name)))
	}
	for name, owner := range map[string]int{"ca.crt": 0, "node.crt": firstID, "node.key": firstID, "operator.crt": 0, "operator.key": 0} {
		mode := os.FileMode(0o644)
		if filepath.Ext(name) == ".key" {
			mode = 0o600
		}
		b.must(errors.Join(os.Chmod(pki(b, name), mode), os.Lchown(pki(b, name), owner, owner)))
	}
}

// address is the node's own on the cable.
func (b *Bed) address() string {
	if b.opts.Name == NodeName {
		return lanNode
	}
	return lanSecond
}

// pullCables removes the cable, which ends in another machine.
func (b *Bed) pullCables() {
	if b.opts.Cluster != nil {
		b.command("ip", "-n", b.NS, "link", "del", cable)
	}
}

// Cut loses every packet between a node and the machine of its coordinator, in
// both directions: nobody is refused, nobody is told, no process is touched.
func (b *Bed) Cut() {
	b.t.Helper()
	b.mustNFT(b.NS, fmt.Sprintf("table inet cut { chain in { type filter hook prerouting priority -300; iifname %s drop; }; }", cable))
	b.mustNFT(b.opts.Cluster.NS, fmt.Sprintf("table inet cut { chain in { type filter hook prerouting priority -300; ip saddr %s drop; }; }", b.address()))
}

// Mend takes a cut back, if there is one.
func (b *Bed) Mend() {
	b.t.Helper()
	if b.opts.Cluster == nil {
		return
	}
	const gone = "table inet cut; delete table inet cut" // adding what is there is no error
	b.mustNFT(b.NS, "add "+gone)
	b.mustNFT(b.opts.Cluster.NS, "add "+gone)
}

// mustNFT changes the packet filter of a network namespace.
func (b *Bed) mustNFT(ns, rules string) {
	b.t.Helper()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+ns, "--", "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("nft %q: %v\n%s", rules, err, out)
	}
}
