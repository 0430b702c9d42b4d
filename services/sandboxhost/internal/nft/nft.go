// Package nft is what the owners of tables of nftables have in common: a connection with
// room for a whole table, and what the library leaves raw.
//
// It knows no table, and must never decide what is in one.
package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// perMessage is how many elements one message has: an attribute of netlink has room
	// for 64 KiB, and an element takes some 80 bytes.
	perMessage = 256
	// socketRoom is for a whole table in one transaction, and for the answers to it.
	socketRoom = 32 << 20
)

// Open returns a connection with room for a transaction of a whole table.
func Open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(
		func(c *netlink.Conn) error { return c.SetWriteBuffer(socketRoom) },
		func(c *netlink.Conn) error { return c.SetReadBuffer(socketRoom) }))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// Send hands elements of one set to a change, in messages that are not too long.
func Send(set *nftables.Set, all []nftables.SetElement, change func(*nftables.Set, []nftables.SetElement) error) error {
	for some := range slices.Chunk(all, perMessage) {
		if err := change(set, some); err != nil {
			return fmt.Errorf("change set %s: %w", set.Name, err)
		}
	}
	return nil
}

// ChainOf is where the verdict of an element of a map goes, "" if it goes nowhere: the
// library leaves such verdicts as attributes.
func ChainOf(raw []byte) string {
	attributes, err := netlink.NewAttributeDecoder(raw)
	if err != nil {
		return ""
	}
	chain := ""
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_VERDICT_CHAIN {
			chain = attributes.String()
		}
	}
	return chain
}
