package balance

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// Names in the table. Behind the prefixes comes the name of a front.
const (
	mapServices   = "services" // front: chain
	mapNode       = "node"     // port of all addresses of the node: chain
	mapNodeAt     = "node_at"  // port of one of them: chain
	setHeld       = "held"     // ports of all addresses, also with nobody behind
	setHeldAt     = "held_at"  // ports of one of them
	prefixChain   = "to_"      // what happens with a connection to a front
	prefixPlaces  = "places_"  // number of a place: backend
	prefixClients = "clients_" // client: backend that it had last
)

// maxClients is how many clients of a front are remembered; the others are sent to any
// backend. One takes some 100 bytes of the kernel.
const maxClients = 65536

// objects are what a table holds.
type objects struct {
	chains map[string]chain
	sets   map[string]elements
}

// elements of a set: key to value, as the kernel has them; the value of a verdict is
// the name of its chain. Of clients nothing is listed: the kernel writes them.
type elements map[string]string

// chain is one chain with its rules.
type chain struct {
	kind     nftables.ChainType // "" for one that others go to
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any // nil when read
	marks    string       // of the rules, in order
}

// leads says whether a map is one of those from fronts to their chains.
func leads(name string) bool { return name == mapServices || name == mapNode || name == mapNodeAt }

// holds says whether a set has the ports of the node that services have.
func holds(name string) bool { return name == setHeld || name == setHeldAt }

// render is what the table holds because of some fronts. The maps of all fronts are in it
// with those only.
func render(parts map[Front]Service) objects {
	o := objects{chains: map[string]chain{}, sets: map[string]elements{mapServices: {}, mapNode: {}, mapNodeAt: {}, setHeld: {}, setHeldAt: {}}}
	for front, s := range parts {
		in, held := front.sets()
		if held != "" {
			o.sets[held][front.key()] = ""
		}
		if len(s.Backends) == 0 {
			continue // nothing leads there: it refuses
		}
		name := front.name()
		places := elements{}
		for i, b := range s.Backends {
			places[placeKey(i)] = backendValue(b)
		}
		o.sets[prefixPlaces+name] = places
		if s.Affinity > 0 {
			o.sets[prefixClients+name] = elements{}
		}
		o.chains[prefixChain+name] = chain{}.with(frontRules(name, s)...)
		o.sets[in][front.key()] = prefixChain + name
	}
	return o
}

// with is the chain with rules.
func (c chain) with(rules ...[]expr.Any) chain {
	c.rules = rules
	marks := make([]string, len(rules))
	for i, r := range rules {
		marks[i] = mark(r)
	}
	c.marks = strings.Join(marks, " ")
	return c
}

// mark is what a rule is known by: it is kept with it as its comment, since the kernel
// gives rules back in another form than it got them.
func mark(rule []expr.Any) string {
	sum := sha256.New()
	for _, e := range rule {
		raw, err := expr.Marshal(byte(nftables.TableFamilyIPv4), e)
		if err != nil {
			fmt.Fprintf(sum, "%+v", e) // it fails when it is sent
		}
		sum.Write(raw)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

func comment(rule []expr.Any) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, mark(rule))
}

// sets are the map that leads from a front to its chain, and the set that says that it is
// held, "" for one of a virtual address: those refuse by their prefixes.
func (f Front) sets() (in, held string) {
	switch {
	case !f.Node:
		return mapServices, ""
	case f.Address.IsValid():
		return mapNodeAt, setHeldAt
	}
	return mapNode, setHeld
}

// key is the front in its map: every part fills words of 4 bytes.
func (f Front) key() string {
	key := f.Address.AsSlice() // none for all addresses
	key = append(key, protocols[f.Protocol], 0, 0, 0)
	return string(append(key, padded(f.Port)...))
}

func placeKey(i int) string { return string(binaryutil.NativeEndian.PutUint32(uint32(i))) }

func backendValue(b netip.AddrPort) string {
	return string(append(b.Addr().AsSlice(), padded(b.Port())...))
}

func padded(port uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, port), 0, 0) }

// setOf is the definition of a set, by its name.
func setOf(table *nftables.Table, name string) *nftables.Set {
	backend := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	s := &nftables.Set{Table: table, Name: name, IsMap: !holds(name)}
	switch {
	case leads(name), holds(name):
		s.Concatenation = true
		s.KeyType = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
		if name != mapNode && name != setHeld {
			s.KeyType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
		}
		if leads(name) {
			s.DataType = nftables.TypeVerdict
		}
	case strings.HasPrefix(name, prefixClients):
		s.KeyType, s.DataType = nftables.TypeIPAddr, backend
		s.HasTimeout, s.Dynamic, s.Size = true, true, maxClients
	default:
		s.KeyType, s.DataType = nftables.TypeMark, backend
	}
	return s
}

// setElements are elements as they are sent.
func setElements(name string, all elements) []nftables.SetElement {
	out := make([]nftables.SetElement, 0, len(all))
	for key, value := range all {
		e := nftables.SetElement{Key: []byte(key), Val: []byte(value)}
		switch {
		case holds(name):
			e.Val = nil
		case leads(name):
			e.Val, e.VerdictData = nil, &expr.Verdict{Kind: expr.VerdictGoto, Chain: value}
		}
		out = append(out, e)
	}
	return out
}
