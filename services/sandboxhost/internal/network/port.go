package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// bucketPorts has the published ports of each sandbox.
const bucketPorts = "ports"

// Reasons for which a port is not published.
const (
	reasonPortTaken      = "HOST_PORT_TAKEN"
	reasonPortInUse      = "HOST_PORT_IN_USE"
	reasonAddressMissing = "HOST_ADDRESS_MISSING"
	reasonNoLocalNet     = "LOCAL_NET_DISABLED"
)

// Port is a port of the node that leads to one of a sandbox.
type Port struct {
	// Protocol is hostport.TCP or hostport.UDP.
	Protocol string `json:"protocol"`
	// Host is the port of the node.
	Host uint16 `json:"host"`
	// Address of the node; the zero Addr is all of them.
	Address netip.Addr `json:"address"`
	// Inside is the port of the sandbox.
	Inside uint16 `json:"inside"`
}

// String is the port as people write it.
func (p Port) String() string {
	if p.Address.IsValid() {
		return fmt.Sprintf("%s %s", p.Protocol, netip.AddrPortFrom(p.Address, p.Host))
	}
	return fmt.Sprintf("%s %d", p.Protocol, p.Host)
}

// at is where a program would listen to be in the way.
func (p Port) at() netip.AddrPort {
	if !p.Address.IsValid() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), p.Host)
	}
	return netip.AddrPortFrom(p.Address, p.Host)
}

// collides says whether two ports cannot both be published.
func (p Port) collides(q Port) bool {
	return p.Protocol == q.Protocol && p.Host == q.Host && (p.Address == q.Address || !p.Address.IsValid() || !q.Address.IsValid())
}

// holder finds who has a port that one of the wanted collides with. Its caller holds n.mu.
func (n *Network) holder(who string, wanted []Port) (other string, port Port, taken bool) {
	for _, p := range wanted {
		for uid, ports := range n.ports {
			if name := sandboxNamed(uid); name != who && slices.ContainsFunc(ports, p.collides) {
				return name, p, true
			}
		}
		for service, ports := range n.services {
			if name := serviceNamed(service); name != who && slices.ContainsFunc(ports, p.collides) {
				return name, p, true
			}
		}
	}
	return "", Port{}, false
}

// Who has ports of the node, as people are told.
func sandboxNamed(uid id.Sandbox) string { return fmt.Sprintf("sandbox %s", uid) }
func serviceNamed(name string) string    { return "service " + name }

// same says whether both are one port of the node.
func (p Port) same(q Port) bool {
	return p.Protocol == q.Protocol && p.Host == q.Host && p.Address == q.Address
}

// claimPorts gives a sandbox ports of the node, if nobody else has them. The claim is
// durable before anything is led there.
func (n *Network) claimPorts(uid id.Sandbox, ports []Port) error {
	n.mu.Lock()
	have, ledger := n.ports[uid], n.ledger
	n.mu.Unlock()
	if slices.Equal(have, ports) {
		return nil // what it has already is not asked for again
	}
	if ledger == nil {
		return fault.New(fault.Unavailable, "publish ports of sandbox %s: the network is not ready yet", uid)
	}
	who := sandboxNamed(uid)
	if err := n.askPorts(who, ports); err != nil {
		return err
	}
	n.mu.Lock()
	if other, p, taken := n.holder(who, ports); taken {
		n.mu.Unlock()
		return portTaken(who, p, other)
	}
	n.ports[uid] = ports
	n.mu.Unlock()
	err := ledger.Update(func(tx journal.Tx) error { return notePorts(tx, uid, ports) })
	if err != nil {
		n.mu.Lock()
		delete(n.ports, uid)
		n.mu.Unlock()
		return fmt.Errorf("publish ports of sandbox %s: %w", uid, err)
	}
	return nil
}

func portTaken(who string, p Port, other string) error {
	return fault.WithReason(fault.New(fault.Conflict, "publish port %s of %s: %s has it", p, who, other), reasonPortTaken)
}

// ClaimForService gives a service ports of the node in place of those that it has. It
// returns fault.Conflict if another has one, a program of the node listens on a new one,
// or the node does not have an address; the service keeps what it had then. The claim is
// the caller's to keep: it lasts until another, or until the process ends.
func (n *Network) ClaimForService(name string, ports []Port) error {
	n.mu.Lock()
	have := n.services[name]
	n.mu.Unlock()
	who := serviceNamed(name)
	fresh := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return slices.ContainsFunc(have, p.same) })
	if err := n.askPorts(who, fresh); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if other, p, taken := n.holder(who, fresh); taken {
		return portTaken(who, p, other)
	}
	n.holdLocked(name, ports)
	return nil
}

// HoldForService notes that a service has ports of the node, in place of those that it
// had, and asks nobody: it had them before this process.
func (n *Network) HoldForService(name string, ports []Port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holdLocked(name, ports)
}

func (n *Network) holdLocked(name string, ports []Port) {
	delete(n.services, name)
	if len(ports) > 0 {
		n.services[name] = ports
	}
}

// askPorts demands that no program of the node has one of the ports, and that the node
// has the addresses and publishes there.
func (n *Network) askPorts(who string, ports []Port) error {
	if len(ports) == 0 {
		return nil
	}
	local, err := hostport.Addresses()
	if err != nil {
		return err
	}
	for _, p := range ports {
		if n.cfg.NoLocalNet && p.Address.IsLoopback() {
			return fault.WithReason(fault.New(fault.Conflict, "publish port %s of %s: disable_local_net of this node rules out loopback addresses", p, who), reasonNoLocalNet)
		}
		if p.Address.IsValid() && !p.Address.IsLoopback() && !local[p.Address] {
			return fault.WithReason(fault.New(fault.Conflict, "publish port %s of %s: this node has no such address", p, who), reasonAddressMissing)
		}
		owner, err := hostport.Owner(p.Protocol, p.at())
		if err != nil {
			return fmt.Errorf("publish ports of %s: %w", who, err)
		}
		if owner != "" {
			return fault.WithReason(fault.New(fault.Conflict, "publish port %s of %s: it is in use by %s", p, who, owner), reasonPortInUse)
		}
	}
	return nil
}

func notePorts(tx journal.Tx, uid id.Sandbox, ports []Port) error {
	if len(ports) == 0 {
		return tx.Delete(bucketPorts, string(uid))
	}
	raw, err := json.Marshal(ports)
	if err != nil {
		return err
	}
	return tx.Put(bucketPorts, string(uid), raw)
}

func loadPorts(tx journal.Tx, log *slog.Logger) (map[id.Sandbox][]Port, error) {
	all := map[id.Sandbox][]Port{}
	err := tx.ForEach(bucketPorts, func(key string, v []byte) error {
		uid, err := id.ParseSandbox(key)
		var ports []Port
		if err := errors.Join(err, json.Unmarshal(v, &ports)); err != nil { // what leads to it now is looked for
			skipped(log, bucketPorts, key, err)
			return nil
		}
		all[uid] = ports
		return nil
	})
	return all, err
}

// adoptPorts makes the ledger of ports be about the sandboxes that have an address, and
// adds what leads to those of whom the ledger knows nothing: it was lost.
func (n *Network) adoptPorts(want found, kernel []element) error {
	n.mu.Lock()
	have, ledger := n.ports, n.ledger
	n.mu.Unlock()
	ports := map[id.Sandbox][]Port{}
	for uid, noted := range have {
		if _, keep := want[uid]; keep {
			ports[uid] = noted
		}
	}
	owner := map[netip.Addr]id.Sandbox{}
	for uid, addr := range want {
		owner[addr] = uid
	}
	lost := map[id.Sandbox][]Port{}
	for _, e := range kernel {
		uid, ok := owner[e.to]
		if _, noted := ports[uid]; ok && !noted {
			lost[uid] = append(lost[uid], e.port)
		}
	}
	err := ledger.Update(func(tx journal.Tx) error {
		var errs []error
		for uid := range have {
			if _, keep := ports[uid]; !keep {
				errs = append(errs, notePorts(tx, uid, nil))
			}
		}
		for uid, found := range lost {
			ports[uid] = found
			errs = append(errs, notePorts(tx, uid, found))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("rewrite ledger of ports: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports = ports
	return nil
}
