package api

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

// maxServices bounds what every node has to keep: half of what one takes, so that there is
// room for services that people make on it.
const maxServices = 1000

// Reasons of refusals of services.
const (
	// ReasonAddressTaken means that another service has the virtual address.
	ReasonAddressTaken = "ADDRESS_TAKEN"
	// ReasonNodePortTaken means that another service has a port of the nodes.
	ReasonNodePortTaken = "NODE_PORT_TAKEN"
	// ReasonNoServices means that the cluster has no addresses for services.
	ReasonNoServices = "SERVICES_DISABLED"
)

// createService writes a service with an address that is claimed, and a count that is held
// to, in the same write. An address of ours that somebody else got meanwhile is chosen
// again; one that was asked for is refused.
func (s *Resources) createService(ctx context.Context, r *record.Resource, req *coordinatorv1.CreateResourceRequest) (*record.Resource, error) {
	done, err := s.deps.Store().Turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	for range maxRaces {
		counted, address, err := s.roomFor(ctx, r)
		if errors.Is(err, fault.Exhausted) { // a repeat makes nothing: what it asked for is there
			return s.deps.Store().Repeated(ctx, r, req.GetRequestId(), req.GetResource(), err)
		}
		if err != nil {
			return nil, err
		}
		if address != "" {
			r.GetService().Placement = &resourcev1.ServicePlacement{Address: address}
		}
		made, err := s.deps.Store().Create(ctx, r, store.Change{NoneSince: []store.Counted{counted}}, req.GetRequestId(), req.GetResource())
		if fault.Reason(err) != store.ReasonRevision && !lostChoice(r, err) {
			return made, claimed("create", err)
		}
	}
	return nil, fault.New(fault.Unavailable, "create %s: others were faster %d times", record.KeyOf(r), maxRaces)
}

// lostChoice says that the address which was chosen for a record is in its way.
func lostChoice(r *record.Resource, err error) bool {
	taken, ok := errors.AsType[*store.ClaimError](err)
	if !ok || r.GetService().GetSpec().GetAddress() != "" {
		return false
	}
	_, lost := taken.Owners[record.AddressClaims+r.GetService().GetPlacement().GetAddress()]
	return lost
}

// claimed gives what another record has the reason that callers know.
func claimed(verb string, err error) error {
	taken, ok := errors.AsType[*store.ClaimError](err)
	if !ok {
		return err
	}
	reason := ReasonNodePortTaken
	for what := range taken.Owners {
		if strings.HasPrefix(what, record.AddressClaims) {
			reason = ReasonAddressTaken
		}
	}
	return conflict(reason, "%s %w", verb, taken)
}

// roomFor is how many services there are, which leaves room for one more, and the address for it.
func (s *Resources) roomFor(ctx context.Context, r *record.Resource) (store.Counted, string, error) {
	counted, err := s.deps.Store().Count(ctx, record.Service)
	switch {
	case err != nil:
		return counted, "", err
	case counted.N >= maxServices:
		return counted, "", fault.WithReason(fault.New(fault.Exhausted,
			"create %s: there are %d services, and no more are taken", record.KeyOf(r), counted.N), "TOO_MANY_SERVICES")
	}
	address, err := s.addressFor(ctx, r)
	return counted, address, err
}

// addressFor is the address that a new service asks for, or one that is free; "" for a
// headless one.
func (s *Resources) addressFor(ctx context.Context, r *record.Resource) (string, error) {
	if spec := r.GetService().GetSpec(); spec.GetAddress() != "" || spec.GetHeadless() {
		return spec.GetAddress(), nil
	}
	taken, err := s.deps.Store().Claimed(ctx, record.AddressClaims)
	if err != nil {
		return "", err
	}
	address, ok := freeAddress(s.cfg.ServicePrefix, taken, rand.Uint32N)
	if !ok {
		return "", fault.WithReason(fault.New(fault.Exhausted,
			"create %s: all addresses of %s are in use", record.KeyOf(r), s.cfg.ServicePrefix), "NO_ADDRESS")
	}
	return address.String(), nil
}

// freeAddress finds an address that is not taken, from a random one on: those that
// choose at once seldom meet, and an address that was given back is seldom the next that
// is given, while somebody may still remember it.
func freeAddress(p netip.Prefix, taken map[string]bool, random func(n uint32) uint32) (netip.Addr, bool) {
	hosts := uint32(1)<<(32-p.Bits()) - 2
	first := p.Masked().Addr().As4()
	from := random(hosts)
	for i := range hosts {
		raw := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+1+(from+i)%hosts)
		addr := netip.AddrFrom4([4]byte(raw))
		if !taken[addr.String()] {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// assignable says whether a service may have an address: one of the prefix, and neither
// its first nor its last.
func assignable(p netip.Prefix, addr netip.Addr) bool {
	return p.Contains(addr) && addr != p.Masked().Addr() && p.Contains(addr.Next())
}

// service checks what a new service asks for.
func (p *problems) service(spec *resourcev1.ServiceSpec, prefix netip.Prefix) {
	if text := spec.GetAddress(); text != "" && prefix.IsValid() {
		addr, err := netip.ParseAddr(text)
		p.must(err == nil && assignable(prefix, addr), "service.spec.address",
			text+" is no address for services of this cluster, which are in "+prefix.String()+": name one of these, or none")
	}
}
