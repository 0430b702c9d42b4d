package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"staddle.internal/kit/fault"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// judge says whether a wish is accepted, and whether it changes anything. An accepted one
// has its address, and its first acceptance, when it returns.
func judge(cfg Config, all map[string]*sandboxhostv1.ServiceWish, wish *sandboxhostv1.ServiceWish) (changed bool, err error) {
	if len(cfg.Prefixes) == 0 {
		return false, because("SERVICES_DISABLED", fault.Denied, wish, "this node has no services; give it network.service_prefixes in node.yaml")
	}
	old := all[wish.GetUid()]
	if wish.GetAddress() == "" && !wish.GetSpec().GetHeadless() {
		wish.Address = old.GetAddress()
	}
	switch {
	case old == nil:
		if len(all) >= limit {
			return false, because("TOO_MANY_SERVICES", fault.Exhausted, wish, "this node has %d services and takes no more", limit)
		}
	case old.GetManager() != wish.GetManager():
		return false, notYours(old)
	case wish.GetGeneration() < old.GetGeneration():
		return false, because("STALE_GENERATION", fault.Conflict, wish, "generation %d is here already, %d came late", old.GetGeneration(), wish.GetGeneration())
	case wish.GetName() != old.GetName():
		return false, because("SPEC_CHANGED", fault.Conflict, wish, "is called %s, a name is not changed", old.GetName())
	case wish.GetGeneration() == old.GetGeneration():
		if !proto.Equal(wish.GetSpec(), old.GetSpec()) || wish.GetAddress() != old.GetAddress() {
			return false, because("SPEC_CHANGED", fault.Conflict, wish,
				"generation %d is here with another spec or address, count the generation up", wish.GetGeneration())
		}
		locate(old, wish)
		return !proto.Equal(wish.GetPosition(), old.GetPosition()), nil
	}
	locate(old, wish)
	return true, place(cfg, all, wish)
}

// locate keeps what is known of a wish already: when it was accepted, and where in the
// history its record was, unless that is told anew.
func locate(old, wish *sandboxhostv1.ServiceWish) {
	wish.AcceptedAt = old.GetAcceptedAt()
	if wish.GetPosition() == nil {
		wish.Position = old.GetPosition()
	}
}

// place demands that name and address are nobody else's, and gives a free address to a
// wish that needs one.
func place(cfg Config, all map[string]*sandboxhostv1.ServiceWish, wish *sandboxhostv1.ServiceWish) error {
	used := map[netip.Addr]string{}
	for uid, other := range all {
		if uid == wish.GetUid() {
			continue
		}
		if other.GetName() == wish.GetName() {
			return because("NAME_TAKEN", fault.Conflict, wish, "the name belongs to service %s of manager %q", uid, other.GetManager())
		}
		if addr, err := netip.ParseAddr(other.GetAddress()); err == nil {
			used[addr] = other.GetName()
		}
	}
	if wish.GetSpec().GetHeadless() {
		return nil
	}
	if wish.GetAddress() == "" {
		addr, ok := free(cfg.Prefixes, used)
		if !ok {
			return because("NO_ADDRESS", fault.Exhausted, wish, "all addresses of %s are in use", prefixes(cfg.Prefixes))
		}
		wish.Address = addr.String()
		return nil
	}
	addr, err := netip.ParseAddr(wish.GetAddress())
	if err != nil || !slices.ContainsFunc(cfg.Prefixes, func(p netip.Prefix) bool { return assignable(p, addr) }) {
		return because("ADDRESS_OUTSIDE", fault.Conflict, wish, "%s is no address for services of this node, which are in %s",
			wish.GetAddress(), prefixes(cfg.Prefixes))
	}
	if other, taken := used[addr]; taken {
		return because("ADDRESS_TAKEN", fault.Conflict, wish, "%s is the address of service %s", addr, other)
	}
	return nil
}

// free finds the first address that nobody has.
func free(all []netip.Prefix, used map[netip.Addr]string) (netip.Addr, bool) {
	for _, p := range all {
		for addr := p.Masked().Addr().Next(); p.Contains(addr.Next()); addr = addr.Next() {
			if _, taken := used[addr]; !taken {
				return addr, true
			}
		}
	}
	return netip.Addr{}, false
}

// assignable says whether an address is one of a prefix, and neither its first nor its last.
func assignable(p netip.Prefix, addr netip.Addr) bool {
	return p.Contains(addr) && addr != p.Masked().Addr() && p.Contains(addr.Next())
}

func prefixes(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

func because(reason string, kind fault.Kind, wish *sandboxhostv1.ServiceWish, format string, args ...any) error {
	return fault.WithReason(fault.New(kind, "service %s: %s", wish.GetName(), fmt.Sprintf(format, args...)), reason)
}

func notYours(wish *sandboxhostv1.ServiceWish) error {
	return because("MANAGER_MISMATCH", fault.Denied, wish, "belongs to manager %q", wish.GetManager())
}
