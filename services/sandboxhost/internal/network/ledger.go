package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/journal"
)

// claim returns the address of a sandbox, and gives it a free one first if it has
// none. The claim is durable before anybody uses the address.
func (n *Network) claim(uid id.Sandbox) (netip.Addr, error) {
	n.mu.Lock()
	if addr, ok := n.byUID[uid]; ok {
		n.mu.Unlock()
		return addr, nil
	}
	ledger := n.ledger
	if ledger == nil {
		n.mu.Unlock()
		return netip.Addr{}, fault.New(fault.Unavailable, "claim address of sandbox %s: the network is not ready yet", uid)
	}
	now := n.now()
	addr, ok := next(n.cfg.Subnet, n.last, func(a netip.Addr) bool {
		_, used := n.byAddr[a]
		return used || cooling(n.freed, a, now)
	})
	if !ok {
		wait, later := soonest(n.freed, n.cfg.Subnet, now)
		n.mu.Unlock()
		if later {
			return netip.Addr{}, fault.New(fault.Exhausted, "claim address of sandbox %s: all addresses of %s are in use or were a moment ago; the next is free in %s",
				uid, n.cfg.Subnet, wait.Round(time.Second))
		}
		return netip.Addr{}, fault.New(fault.Exhausted, "claim address of sandbox %s: all addresses of %s are in use", uid, n.cfg.Subnet)
	}
	n.byUID[uid], n.byAddr[addr], n.last = addr, uid, addr
	n.mu.Unlock()

	err := ledger.Update(func(tx journal.Tx) error { return tx.Put(bucket, string(uid), []byte(addr.String())) })
	if err != nil {
		n.forget(uid)
		return netip.Addr{}, fmt.Errorf("claim address of sandbox %s: %w", uid, err)
	}
	return addr, nil
}

// free gives the address of a sandbox back: in the ledger first, so that it is
// never free here while noted there. Nobody gets it for a while.
func (n *Network) free(uid id.Sandbox) error {
	n.mu.Lock()
	ledger := n.ledger
	addr, held := n.byUID[uid]
	now := n.now()
	over := cooled(n.freed, now)
	n.mu.Unlock()
	if !held {
		return nil
	}
	if ledger == nil {
		return fault.New(fault.Unavailable, "free address of sandbox %s: the network is not ready yet", uid)
	}
	err := ledger.Update(func(tx journal.Tx) error {
		for _, a := range over {
			if err := tx.Delete(bucketFreed, a.String()); err != nil {
				return err
			}
		}
		return errors.Join(tx.Delete(bucket, string(uid)), notePorts(tx, uid, nil), noteFreed(tx, addr, n.boot, now))
	})
	if err != nil {
		return fmt.Errorf("free address of sandbox %s: %w", uid, err)
	}
	n.mu.Lock()
	for _, a := range over {
		if n.freed[a] < now-coolDown { // else it was given out and freed again meanwhile
			delete(n.freed, a)
		}
	}
	n.freed[addr] = now
	n.mu.Unlock()
	n.forget(uid)
	return nil
}

func (n *Network) forget(uid id.Sandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr := n.byUID[uid]
	delete(n.byUID, uid)
	delete(n.ports, uid)
	delete(n.mirrored, uid)
	delete(n.joined, uid)
	if n.byAddr[addr] == uid {
		delete(n.byAddr, addr)
	}
}

// assignable says whether an address is for sandboxes: not the network's own, the
// bridge's or the broadcast address, nor one of another network.
func assignable(subnet netip.Prefix, a netip.Addr) bool {
	first := subnet.Masked().Addr().Next().Next()
	return subnet.Contains(a) && !a.Less(first) && subnet.Contains(a.Next())
}

// next finds the first free address behind last, and goes round once. The
// network's own, the bridge's and the broadcast address are never free. A freed
// address comes up again as late as possible, so that nobody takes a new sandbox
// for an old one.
func next(subnet netip.Prefix, last netip.Addr, used func(netip.Addr) bool) (netip.Addr, bool) {
	first := subnet.Masked().Addr().Next().Next()
	free := func(a netip.Addr) bool {
		return assignable(subnet, a) && !used(a)
	}
	if !subnet.Contains(last) || last.Less(first) {
		last = first.Prev()
	}
	for a := last.Next(); subnet.Contains(a); a = a.Next() {
		if free(a) {
			return a, true
		}
	}
	for a := first; a.Compare(last) <= 0; a = a.Next() {
		if free(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// found is what the namespace of one sandbox really uses.
type found map[id.Sandbox]netip.Addr

// reconcile decides what the ledger must say. Who has a note keeps it: what the namespace
// uses instead it has given itself. Who has none, for the ledger was lost, is noted with what
// it uses. Nobody is noted with what another uses under his note or without one: of those that
// use one address without a note the first that was made has it, and each of the others is lost,
// with the one that has it.
func reconcile(notes, inUse found) (merged found, lost map[id.Sandbox]id.Sandbox) {
	merged, lost = found{}, map[id.Sandbox]id.Sandbox{}
	owner := map[netip.Addr]id.Sandbox{}
	note := func(uid id.Sandbox, addr netip.Addr) (other id.Sandbox, taken bool) {
		if other, taken = owner[addr]; !taken {
			owner[addr], merged[uid] = uid, addr
		}
		return other, taken
	}
	for uid, addr := range inUse {
		if notes[uid] == addr {
			note(uid, addr)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(inUse)) { // uids are in the order in which they were made
		if _, noted := notes[uid]; noted {
			continue
		}
		if other, taken := note(uid, inUse[uid]); taken {
			lost[uid] = other
		}
	}
	for uid, addr := range notes {
		if _, known := merged[uid]; !known {
			note(uid, addr) // who does not get it is given another
		}
	}
	return merged, lost
}

// remembered adds to the notes what the bridge knows of those that the ledger does not: it was
// told of each sandbox behind which port it is, and nobody in a sandbox can change that.
func remembered(notes, bridge found) found {
	all, taken := maps.Clone(notes), map[netip.Addr]bool{}
	for _, addr := range notes {
		taken[addr] = true
	}
	for uid, addr := range bridge {
		if _, noted := notes[uid]; !noted && !taken[addr] {
			all[uid] = addr
		}
	}
	return all
}

// rewrite makes the ledger say what was found.
func (n *Network) rewrite(want found) error {
	n.mu.Lock()
	have := found{}
	for uid, addr := range n.byUID {
		have[uid] = addr
	}
	ledger := n.ledger
	n.mu.Unlock()
	if maps.Equal(have, want) {
		return nil // a full disk holds up nobody who has nothing to write
	}
	err := ledger.Update(func(tx journal.Tx) error {
		for uid := range have {
			if _, keep := want[uid]; !keep {
				if err := tx.Delete(bucket, string(uid)); err != nil {
					return err
				}
			}
		}
		for uid, addr := range want {
			if have[uid] == addr {
				continue
			}
			if err := tx.Put(bucket, string(uid), []byte(addr.String())); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("rewrite ledger of addresses: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byUID, n.byAddr = map[id.Sandbox]netip.Addr{}, map[netip.Addr]id.Sandbox{}
	for uid, addr := range want {
		n.byUID[uid], n.byAddr[addr] = addr, uid
	}
	return nil
}
