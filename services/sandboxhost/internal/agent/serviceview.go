package agent

import (
	"maps"
	"sync"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
)

// serviceView is what the stream of service records has told.
type serviceView struct {
	changed chan struct{} // something is worth a look

	mu sync.Mutex // guards all below
	followed[string]
}

func newServiceView() *serviceView {
	return &serviceView{changed: make(chan struct{}, 1), followed: newFollowed[string]()}
}

// facts are what is known, for one look; live says whether that may be acted on.
func (v *serviceView) facts() (f serviceFacts, epoch uint64, live bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return serviceFacts{Records: maps.Clone(v.records.whole), Mirror: v.mirror}, v.epoch, v.live
}

// still says that since an epoch nothing has changed that a question about a record rests
// on.
func (v *serviceView) still(uid string, epoch uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.epoch == epoch && v.records.whole[uid] == nil
}

// away says that no stream is read: what the last one told stays known, nothing is live,
// and the next one tells all anew.
func (v *serviceView) away() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.anew()
}

// event takes one message. It reports whether the mirror's state came, which is the first
// answer of a stream, and after which everything is worth a look.
func (v *serviceView) event(msg *clusteraccessv1.WatchResourcesResponse) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := msg.GetEvent().(type) {
	case *clusteraccessv1.WatchResourcesResponse_Snapshot:
		v.anew()
	case *clusteraccessv1.WatchResourcesResponse_Changed:
		if e.Changed.GetService() != nil {
			v.records.set(e.Changed.GetMeta().GetUid(), e.Changed)
		}
	case *clusteraccessv1.WatchResourcesResponse_Deleted:
		v.records.remove(e.Deleted.GetMeta().GetUid())
	case *clusteraccessv1.WatchResourcesResponse_Mirror:
		v.state(e.Mirror)
		select {
		case v.changed <- struct{}{}:
		default: // it will look anyway
		}
		return true
	}
	return false
}
