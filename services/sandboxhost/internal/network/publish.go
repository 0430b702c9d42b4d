package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// Names of the maps from ports of the node to sandboxes: of all addresses, and of one.
const (
	mapPorts   = "ports"
	mapPortsAt = "ports_at"
)

// element is one published port with the sandbox's address that it leads to.
type element struct {
	port Port
	to   netip.Addr
}

// Widths in registers: everything is padded to words of 4 bytes.
const word = 4

var protocolNumbers = map[string]byte{hostport.TCP: unix.IPPROTO_TCP, hostport.UDP: unix.IPPROTO_UDP}

// set is the element as the kernel has it, and the name of its map.
func (e element) set() (name string, s nftables.SetElement) {
	key := []byte{protocolNumbers[e.port.Protocol], 0, 0, 0}
	key = append(key, paddedPort(e.port.Host)...)
	name = mapPorts
	if e.port.Address.IsValid() {
		name, key = mapPortsAt, append(e.port.Address.AsSlice(), key...)
	}
	return name, nftables.SetElement{Key: key, Val: append(e.to.AsSlice(), paddedPort(e.port.Inside)...)}
}

func paddedPort(port uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, port), 0, 0) }

// parseElement is the opposite of set.
func parseElement(name string, s nftables.SetElement) (element, bool) {
	key, val := s.Key, s.Val
	var e element
	if name == mapPortsAt {
		if len(key) < word {
			return element{}, false
		}
		e.port.Address, _ = netip.AddrFromSlice(key[:word])
		key = key[word:]
	}
	if len(key) != 2*word || len(val) != 2*word {
		return element{}, false
	}
	for protocol, number := range protocolNumbers {
		if key[0] == number {
			e.port.Protocol = protocol
		}
	}
	e.port.Host, e.port.Inside = binary.BigEndian.Uint16(key[word:]), binary.BigEndian.Uint16(val[word:])
	e.to, _ = netip.AddrFromSlice(val[:word])
	return e, e.port.Protocol != ""
}

// published lists what should be in the maps, in order.
func (n *Network) published() []element {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []element
	for uid, ports := range n.ports {
		addr, ok := n.byUID[uid]
		for _, p := range ports {
			if ok {
				all = append(all, element{port: p, to: addr})
			}
		}
	}
	return sorted(all)
}

func sorted(all []element) []element {
	slices.SortFunc(all, func(a, b element) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return all
}

// listPublished lists what is in the maps of the kernel, in order. A table that is not
// there has none.
func (n *Network) listPublished() ([]element, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == n.tableName() }) {
		return nil, nil
	}
	sets, err := c.GetSets(n.table())
	if err != nil {
		return nil, fmt.Errorf("list sets of table %s: %w", n.tableName(), err)
	}
	var all []element
	for _, set := range sets {
		if !isMap(set.Name) {
			continue
		}
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list map %s: %w", set.Name, err)
		}
		for _, s := range elements {
			if e, ok := parseElement(set.Name, s); ok {
				all = append(all, e)
			}
		}
	}
	return sorted(all), nil
}

func isMap(name string) bool { return name == mapPorts || name == mapPortsAt }

// publish leads ports to a sandbox that has claimed them. What a program of the node was
// sent before is forgotten: packets of udp would go there for ever.
func (n *Network) publish(uid id.Sandbox) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	elements := n.elementsOf(uid)
	if len(elements) == 0 {
		return nil
	}
	err := n.changeElements(elements, (*nftables.Conn).SetAddElements)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) { // somebody took the table away, or changed it
		err = n.writeTableLocked()
	}
	if err != nil {
		return fmt.Errorf("publish ports of sandbox %s: %w", uid, err)
	}
	local, err := hostport.Addresses()
	if err != nil {
		return err
	}
	n.forgetFlows(uid, func(f flow) bool {
		return f.protocol == unix.IPPROTO_UDP && local[f.to] && slices.ContainsFunc(elements, f.misses)
	})
	return nil
}

// unpublish ends what leads to a sandbox, and forgets every connection with it.
func (n *Network) unpublish(uid id.Sandbox) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	addr, ok := n.byUID[uid]
	n.mu.Unlock()
	if !ok {
		return nil
	}
	if elements := n.elementsOf(uid); len(elements) > 0 {
		err := n.changeElements(elements, (*nftables.Conn).SetDeleteElements)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take back ports of sandbox %s: %w", uid, err)
		}
		n.mu.Lock()
		delete(n.ports, uid) // freed in the ledger with the address
		n.mu.Unlock()
		if err != nil { // not all were there: what is left is written as a whole
			if err := n.writeTableLocked(); err != nil {
				return fmt.Errorf("take back ports of sandbox %s: %w", uid, err)
			}
		}
	}
	six := n.six(addr)
	n.forgetFlows(uid, func(f flow) bool { return f.with(addr) || six.IsValid() && f.with(six) })
	return nil
}

func (n *Network) elementsOf(uid id.Sandbox) []element {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, ok := n.byUID[uid]
	if !ok {
		return nil
	}
	all := make([]element, 0, len(n.ports[uid]))
	for _, p := range n.ports[uid] {
		all = append(all, element{port: p, to: addr})
	}
	return all
}

// changeElements adds or removes elements in one transaction.
func (n *Network) changeElements(elements []element, change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for name, some := range byMap(elements) {
		if err := change(c, portMap(n.table(), name), some); err != nil {
			return err
		}
	}
	return c.Flush()
}

func byMap(elements []element) map[string][]nftables.SetElement {
	all := map[string][]nftables.SetElement{}
	for _, e := range elements {
		name, s := e.set()
		all[name] = append(all[name], s)
	}
	return all
}

// portMap is one of the two maps.
func portMap(table *nftables.Table, name string) *nftables.Set {
	parts := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	if name == mapPortsAt {
		parts = slices.Insert(parts, 0, nftables.TypeIPAddr)
	}
	return &nftables.Set{
		Table: table, Name: name, IsMap: true, Concatenation: true, KeyType: nftables.MustConcatSetType(parts...),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	}
}

// forgetFlows makes the kernel forget connections. That it cannot is no reason not to go
// on: they end by themselves.
func (n *Network) forgetFlows(uid id.Sandbox, which func(flow) bool) {
	if err := dropFlows(which); err != nil {
		n.log.Warn("connections not forgotten", uid.Attr(), logging.Err(err))
	}
}
