package network

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// setSelves has the address of each member of a group twice: a rule can look up where a packet
// comes from and goes to, and not compare the two.
const setSelves = "selves"

func selfSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{
		Table: table, Name: setSelves, Concatenation: true, KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr),
	}
}

func (m member) self() nftables.SetElement {
	return nftables.SetElement{Key: slices.Repeat(m.addr.AsSlice(), 2)}
}

// toItself demands that a packet goes to the sandbox that it comes from.
func toItself() []expr.Any {
	at := func(header, register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: header, Len: word}
	}
	return []expr.Any{
		at(layer4.source, firstWord), at(layer4.destination, firstWord+1),
		&expr.Lookup{SourceRegister: firstWord, SetName: setSelves},
	}
}
