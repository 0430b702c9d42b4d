package record

import (
	"slices"
	"strconv"
	"strings"
)

// AddressClaims is how the claims of virtual addresses begin.
const AddressClaims = "address/"

// nodePortClaims is how the claims of ports of the nodes begin.
const nodePortClaims = "node-port/"

// Claims lists what a record has that no other may have, sorted: the virtual address of a
// service, and its ports of the nodes, whatever their address: which addresses a node has
// is not known here.
func Claims(r *Resource) []string {
	s := r.GetService()
	var all []string
	if address := s.GetPlacement().GetAddress(); address != "" {
		all = append(all, AddressClaims+address)
	}
	for _, p := range s.GetSpec().GetPorts() {
		if p.GetNodePort() == 0 {
			continue
		}
		protocol := p.GetProtocol()
		if protocol == "" {
			protocol = "tcp"
		}
		all = append(all, nodePortClaims+protocol+"/"+strconv.FormatUint(uint64(p.GetNodePort()), 10))
	}
	slices.Sort(all)
	return all
}

// ClaimText is a claim as people read it: "address 10.78.128.1" or "node port tcp/80".
func ClaimText(claim string) string {
	kind, what, _ := strings.Cut(claim, "/")
	return strings.ReplaceAll(kind, "-", " ") + " " + what
}
