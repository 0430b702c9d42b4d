package network

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// HostInterface is the name of the host's end of a sandbox's interface.
func HostInterface(uid id.Sandbox) string { return hostInterface(uid) }

// Interface is the host's end of the interface of a sandbox, as it is found.
type Interface struct {
	// Name of it.
	Name string
	// UID of the sandbox that the ledger has an address for. Empty if it is of none.
	UID id.Sandbox
	// Whole says that packets can pass.
	Whole bool
}

// Interfaces lists the interfaces on our bridge that are named as ours are.
func (n *Network) Interfaces() ([]Interface, error) {
	owners := map[string]id.Sandbox{}
	for uid := range n.Addresses() {
		owners[hostInterface(uid)] = uid
	}
	links, err := n.hostEnds()
	if err != nil {
		return nil, err
	}
	found := make([]Interface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		found = append(found, Interface{Name: a.Name, UID: owners[a.Name], Whole: a.Flags&net.FlagUp != 0})
	}
	return found, nil
}

// Addresses are the addresses in the ledger.
func (n *Network) Addresses() map[id.Sandbox]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.byUID)
}

// Fault says in one sentence what is wrong with bridge, forwarding or rules, and ""
// if nothing is. Mend mends it.
func (n *Network) Fault() (string, error) { return n.broken() }

// RemoveInterface removes an interface that is of no sandbox. One of a sandbox in
// the ledger is fault.Conflict; one that is not there, or is not ours, is left.
func (n *Network) RemoveInterface(name string) error {
	for uid := range n.Addresses() {
		if hostInterface(uid) == name {
			return fault.New(fault.Conflict, "remove interface %s: it is of sandbox %s", name, uid)
		}
	}
	links, err := n.hostEnds()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().Name == name {
			return n.removeStray(l)
		}
	}
	return nil
}

func (n *Network) removeStray(l netlink.Link) error {
	name := l.Attrs().Name
	if err := netlink.LinkDel(l); err != nil && !isGone(err) {
		return fmt.Errorf("remove interface %s of nobody: %w", name, err)
	}
	n.log.Warn("interface of no sandbox removed", logging.Component(name))
	return nil
}

// hostEnds lists the interfaces on our bridge that are named as ours are. Others
// may hang whatever they like on it.
func (n *Network) hostEnds() ([]netlink.Link, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	bridge := n.bridge
	n.mu.Unlock()
	var ours []netlink.Link
	for _, l := range links {
		if a := l.Attrs(); bridge != 0 && a.MasterIndex == bridge && l.Type() == "veth" && namedAsOurs(a.Name) {
			ours = append(ours, l)
		}
	}
	return ours, nil
}

// namedAsOurs says whether a name can be hostInterface of a sandbox.
func namedAsOurs(name string) bool {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz" // of Crockford's base 32
	rest, ok := strings.CutPrefix(name, hostPrefix)
	return ok && len(name) == len(hostInterface(id.Sandbox(strings.Repeat("0", 26)))) && strings.Trim(rest, digits) == ""
}
