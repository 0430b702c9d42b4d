package agent

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// serviceFacts is all that a plan for services rests on.
type serviceFacts struct {
	// Records in the mirror, by uid.
	Records map[string]*resourcev1.Resource
	// Mirror is the state of it, which is live.
	Mirror *clusteraccessv1.MirrorState
	// Wishes that the host holds for the cluster, by uid.
	Wishes map[string]*sandboxhostv1.ServiceWish
	// Seen says where in the history this process saw records last.
	Seen map[string]*resourcev1.Position
}

// wanted is one record to hand to the host.
type wanted struct {
	record *resourcev1.Resource
	at     *resourcev1.Position
}

// unnamed is one wish of which the mirror has no record: that only nominates it.
type unnamed struct {
	wish *sandboxhostv1.ServiceWish
	at   *resourcev1.Position // at which its record was there; nil if that is not known
}

// planServices says which wishes to ask the coordinator about, and which to make, each
// ordered by name. It rests on a live mirror alone: whoever has none plans nothing.
func planServices(f serviceFacts) (absent []unnamed, ensure []wanted) {
	for uid, wish := range f.Wishes {
		if f.Records[uid] == nil {
			absent = append(absent, unnamed{wish, cmp.Or(f.Seen[uid], wish.GetPosition())})
		}
	}
	for uid, r := range f.Records {
		// One that is ahead of the mirror's state is covered by the next one.
		if covered(f.Mirror, r) && differs(f.Wishes[uid], r, positionOf(f.Mirror, r)) {
			ensure = append(ensure, wanted{r, positionOf(f.Mirror, r)})
		}
	}
	slices.SortFunc(absent, func(a, b unnamed) int { return cmp.Compare(a.wish.GetName(), b.wish.GetName()) })
	slices.SortFunc(ensure, func(a, b wanted) int {
		return cmp.Compare(a.record.GetMeta().GetName(), b.record.GetMeta().GetName())
	})
	return absent, ensure
}

// portOfNode is a port of the nodes, whatever their address: the coordinator gives each to
// one service.
type portOfNode struct {
	protocol string
	number   uint32
}

func portOf(p *resourcev1.ServicePort) portOfNode {
	return portOfNode{cmp.Or(p.GetProtocol(), "tcp"), p.GetNodePort()}
}

// planYields says which services are to be made first as they are on the host, without
// the ports of the node that another one is to have: those that swapped theirs while this
// node was away would else wait for each other for ever. The coordinator gives no port
// to two at once. So one of any such circle gave its port up in a generation that this
// node never saw, and is made as one of these here.
func planYields(f serviceFacts, ensure []wanted) []wanted {
	owners := map[portOfNode]string{} // by port, the uid of the service that is to have it
	for _, w := range ensure {
		for _, p := range w.record.GetService().GetSpec().GetPorts() {
			owners[portOf(p)] = w.record.GetMeta().GetUid()
		}
	}
	var yields []wanted
	for _, w := range ensure {
		uid, wish := w.record.GetMeta().GetUid(), f.Wishes[w.record.GetMeta().GetUid()]
		if wish == nil || wish.GetGeneration()+1 >= w.record.GetMeta().GetGeneration() {
			continue // it has no generation between
		}
		yielding := proto.CloneOf(w.record)
		yielding.Meta.Generation--
		yielding.GetService().Spec = proto.CloneOf(wish.GetSpec())
		gives := false
		for _, p := range yielding.GetService().GetSpec().GetPorts() {
			if owner, ok := owners[portOf(p)]; ok && p.GetNodePort() != 0 && owner != uid {
				p.NodePort, p.NodeAddress, gives = 0, "", true
			}
		}
		if gives {
			yields = append(yields, wanted{yielding, w.at})
		}
	}
	return yields
}

// covered says that the state of a mirror covers a record. It may be one revision behind:
// while more changes of the same revision are to come.
func covered(mirror *clusteraccessv1.MirrorState, r *resourcev1.Resource) bool {
	return mirror.GetRevision()+1 >= r.GetMeta().GetRevision()
}

// differs says that a wish is not what its record asks for. One of a later generation
// comes from a newer history, and is left alone.
func differs(wish *sandboxhostv1.ServiceWish, r *resourcev1.Resource, at *resourcev1.Position) bool {
	switch have, want := wish.GetGeneration(), r.GetMeta().GetGeneration(); {
	case wish == nil || have < want:
		return true
	case have > want:
		return false
	}
	return !proto.Equal(wish.GetSpec(), r.GetService().GetSpec()) || wish.GetAddress() != r.GetService().GetPlacement().GetAddress() ||
		wish.GetPosition() == nil && at != nil
}

// see notes where the records of a live mirror were seen, and forgets those of which
// nobody knows any more.
func see(f serviceFacts) {
	for uid, r := range f.Records {
		if at := positionOf(f.Mirror, r); at != nil && covered(f.Mirror, r) {
			f.Seen[uid] = at
		}
	}
	maps.DeleteFunc(f.Seen, func(uid string, _ *resourcev1.Position) bool {
		return f.Records[uid] == nil && f.Wishes[uid] == nil
	})
}
