// Package balance owns what leads from the virtual addresses of services, and from their
// ports of the node, to the sandboxes of this node: one table of nftables, beside the one of package network, and the routes
// that make the node itself find those addresses.
//
// What should be in the kernel is a pure function of the services (objects); what is there
// is read, and the difference is written in one transaction. So a change costs what it
// changes, a start writes nothing that is there already, and what others took away comes
// back without anything else being touched.
//
// It must never decide which sandboxes are behind a service, and never touch a table or a
// route that is not its own. In the trail it comes after package service.
package balance

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/hostport"
)

// Config says where services are.
type Config struct {
	// Bridge is the name of the bridge of the sandboxes.
	Bridge string
	// Gateway is the address of the bridge.
	Gateway netip.Addr
	// Prefixes are the IPv4 networks of virtual addresses. Whatever in them leads nowhere
	// refuses.
	Prefixes []netip.Prefix
	// NoLocalNet means that ports of the node do not lead anywhere from its loopback
	// addresses.
	NoLocalNet bool
}

// Front is where a service is reached.
type Front struct {
	// Node says that it is a port of the node, and not of a virtual address.
	Node bool
	// Address is the virtual one, or one of the node, of which the zero Addr is all.
	Address netip.Addr
	// Protocol is hostport.TCP or hostport.UDP.
	Protocol string
	// Port of the service.
	Port uint16
}

// String is the front as people write it.
func (f Front) String() string {
	if !f.Address.IsValid() {
		return fmt.Sprintf("port %d/%s of the node", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Address, f.Port), f.Protocol)
}

// Service is what stands behind a front.
type Service struct {
	// Affinity is for how long after its last connection a client comes to the same
	// backend again, in whole milliseconds; 0 is not at all.
	Affinity time.Duration
	// Backends take the connections, each with the same chance. None refuses at once.
	Backends []netip.AddrPort
}

// Balancer leads to sandboxes.
type Balancer struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex // held while the kernel is changed or compared
	parts map[Front]Service
	known bool // parts is what was written last; else the kernel is asked
}

// New returns a balancer. It writes nothing until Set.
func New(cfg Config, log *slog.Logger) *Balancer { return &Balancer{cfg: cfg, log: log} }

// Set makes the kernel lead to what stands behind each front, and to nothing else. What a
// program sent by udp to a backend that is gone goes to another from then on; connections
// of tcp that are open stay. After an error it is not known what leads where until the next
// Set. Safe to repeat.
func (b *Balancer) Set(want map[Front]Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := make(map[Front]Service, len(want))
	for front, service := range want {
		service.Backends = arrange(b.parts[front].Backends, service.Backends)
		next[front] = service
	}
	if b.known {
		before, after, changed := differing(b.parts, next)
		if len(changed) == 0 {
			return nil
		}
		err := apply(b.table(), diff(render(before), render(after)))
		if err == nil {
			b.parts = next
			return b.settle(changed)
		}
		b.log.Warn("services written as a whole", logging.Err(err))
	}
	b.parts, b.known = next, false
	if _, err := b.rebuild(); err != nil {
		return err
	}
	b.known = true
	return b.settle(slices.Collect(maps.Keys(next)))
}

// Mend compares what is in the kernel with what was set last, and makes it so again. It
// says what was wrong, "" if nothing was. Nothing is written while nothing has changed, and
// nothing is looked at while there are no services.
func (b *Balancer) Mend() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known || len(b.parts) == 0 {
		return "", nil
	}
	return b.rebuild()
}

// Remove takes all of it out of the kernel.
func (b *Balancer) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts, b.known = nil, false
	if err := removeTable(b.table()); err != nil {
		return err
	}
	return b.unroute()
}

// rebuild writes what differs between the kernel and the parts. A node without services
// has neither table nor routes.
func (b *Balancer) rebuild() (string, error) {
	if len(b.parts) == 0 {
		if err := removeTable(b.table()); err != nil {
			return "", err
		}
		return "", b.unroute()
	}
	routed, err := b.route()
	if err != nil {
		return "", err
	}
	have, err := read(b.table())
	if err != nil {
		return "", err
	}
	want := render(b.parts)
	maps.Copy(want.chains, b.base())
	d := diff(have, want)
	if d.empty() {
		return routed, nil
	}
	if !d.baseKept(have) {
		d = diff(objects{}, want)
		d.whole = true
	}
	if err := apply(b.table(), d); err != nil {
		return "", fmt.Errorf("write services: %w", err)
	}
	return fmt.Sprintf("%s in table %s were not as they should be", d, b.table().Name), nil
}

// differing are the fronts that are not the same in both, as they are in each.
func differing(was, is map[Front]Service) (before, after map[Front]Service, changed []Front) {
	before, after = map[Front]Service{}, map[Front]Service{}
	for front, s := range was {
		if now, ok := is[front]; !ok || !now.equal(s) {
			before[front] = s
			changed = append(changed, front)
		}
	}
	for front, s := range is {
		old, ok := was[front]
		if ok && old.equal(s) {
			continue
		}
		after[front] = s
		if !ok {
			changed = append(changed, front)
		}
	}
	return before, after, changed
}

func (s Service) equal(other Service) bool {
	return s.Affinity == other.Affinity && slices.Equal(s.Backends, other.Backends)
}

// arrange puts the backends that are wanted into places. Those that stay keep theirs, so
// that one that comes or goes changes at most two.
func arrange(have, want []netip.AddrPort) []netip.AddrPort {
	missing := make(map[netip.AddrPort]bool, len(want))
	for _, b := range want {
		missing[b] = true
	}
	places := make([]netip.AddrPort, len(missing))
	var late []netip.AddrPort // that stay, and whose places are gone
	for i, b := range have {
		if !missing[b] {
			continue
		}
		delete(missing, b)
		if i < len(places) {
			places[i] = b
		} else {
			late = append(late, b)
		}
	}
	fresh := slices.SortedFunc(maps.Keys(missing), netip.AddrPort.Compare)
	late = append(late, fresh...)
	for i := range places {
		if !places[i].IsValid() {
			places[i], late = late[0], late[1:]
		}
	}
	return places
}

// name of the front as part of names in the table.
func (f Front) name() string {
	switch {
	case !f.Address.IsValid():
		return fmt.Sprintf("node_%s_%d", f.Protocol, f.Port)
	case f.Node:
		return "node_" + Front{Address: f.Address, Protocol: f.Protocol, Port: f.Port}.name()
	}
	return fmt.Sprintf("%s_%s_%d", f.Protocol, strings.ReplaceAll(f.Address.String(), ".", "_"), f.Port)
}

// Protocols that fronts may have.
var protocols = map[string]byte{hostport.TCP: 6, hostport.UDP: 17} // IANA's numbers
