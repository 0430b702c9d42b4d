package store_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	"staddle.internal/services/coordinator/internal/etcd/etcdtest"
	"staddle.internal/services/coordinator/internal/record"
	"staddle.internal/services/coordinator/internal/store"
)

func start(t *testing.T) (*store.Store, *clientv3.Client) {
	t.Helper()
	c := etcdtest.Start(t)
	return store.New(c, "/test/"), c
}

func disk(name string) *record.Resource {
	return &record.Resource{
		Meta: &resourcev1.Metadata{Kind: record.Disk, Name: name, Uid: id.New(), Generation: 1},
		Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{}}},
	}
}

func create(t *testing.T, s *store.Store, r *record.Resource) *record.Resource {
	t.Helper()
	made, err := s.Create(t.Context(), r, store.Change{}, "", r)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestStore_ReturnsWhatWasCreated(t *testing.T) {
	s, _ := start(t)
	made := create(t, s, disk("d1"))
	byName, err := s.Get(t.Context(), record.KeyOf(made))
	if err != nil {
		t.Fatal(err)
	}
	byUID, err := s.GetUID(t.Context(), record.Disk, made.GetMeta().GetUid())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(byName, made) || !proto.Equal(byUID, made) || made.GetMeta().GetRevision() == 0 {
		t.Errorf("got %v and %v, want %v", byName, byUID, made)
	}
	if _, err := s.GetUID(t.Context(), record.Sandbox, made.GetMeta().GetUid()); !errors.Is(err, fault.NotFound) {
		t.Errorf("uid of another kind: got %v, want NotFound", err)
	}
	if _, err := s.Create(t.Context(), disk("d1"), store.Change{}, "", made); !errors.Is(err, fault.Exists) {
		t.Errorf("second of the name: got %v, want Exists", err)
	}
}

func TestStore_OldUIDIsGoneWhenTheNameIsTakenAgain(t *testing.T) {
	s, _ := start(t)
	old := create(t, s, disk("d1"))
	if _, err := s.Commit(t.Context(), store.Change{Remove: []*record.Resource{old}}); err != nil {
		t.Fatal(err)
	}
	create(t, s, disk("d1"))
	if _, err := s.GetUID(t.Context(), record.Disk, old.GetMeta().GetUid()); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
}

func TestStore_RepeatedRequestReturnsTheSameRecord(t *testing.T) {
	s, _ := start(t)
	request := disk("d1")
	first, err := s.Create(t.Context(), disk("d1"), store.Change{}, "r/1", request)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Create(t.Context(), disk("d1"), store.Change{}, "r/1", request)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(first, again) {
		t.Errorf("got %v, want %v", again, first)
	}
	if _, err := s.Create(t.Context(), disk("d2"), store.Change{}, "r/1", disk("d2")); !errors.Is(err, fault.Invalid) {
		t.Errorf("other record under the same id: got %v, want Invalid", err)
	}
	if _, err := s.Create(t.Context(), disk("d1"), store.Change{}, "r/2", request); !errors.Is(err, fault.Exists) {
		t.Errorf("fresh id for a taken name: got %v, want Exists", err)
	}
}

// UDS-6, ETC-8: of two writers at one revision one loses, knows it, and both
// changes are there after it has repeated.
func TestStore_RacingUpdatesAllHappen(t *testing.T) {
	s, _ := start(t)
	create(t, s, disk("d1"))
	const writers, each = 4, 25
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() { // waited for below
			for n := 0; n < each; {
				r, err := s.Get(t.Context(), record.Key{Kind: record.Disk, Name: "d1"})
				if err != nil {
					t.Error(err)
					return
				}
				r.Meta.Generation++
				switch _, err := s.Replace(t.Context(), r); {
				case err == nil:
					n++
				case !errors.Is(err, fault.Conflict) || fault.Reason(err) != store.ReasonRevision:
					t.Errorf("got %v, want Conflict with reason REVISION", err)
					return
				}
			}
		})
	}
	wg.Wait()
	r, err := s.Get(t.Context(), record.Key{Kind: record.Disk, Name: "d1"})
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(1 + writers*each); r.GetMeta().GetGeneration() != want {
		t.Errorf("got generation %d, want %d", r.GetMeta().GetGeneration(), want)
	}
}

// ETC-5: 400 records are listed in one view and leave no key behind.
// What another write has changed meanwhile keeps a change back that depends on it, and
// nothing of that change is there.
func TestStore_AChangeDependsOnWhatMustBeTheSame(t *testing.T) {
	s, _ := start(t)
	seen := create(t, s, disk("seen"))
	next := record.Clone(seen)
	next.Meta.Labels = map[string]string{"cordoned": "yes"}
	if _, err := s.Replace(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	for _, same := range []*record.Resource{seen, disk("never-made-and-not-new")} {
		if same != seen {
			same.Meta.Revision = 1
		}
		_, err := s.Commit(t.Context(), store.Change{Create: []*record.Resource{disk("late")}, Same: []*record.Resource{same}})
		if fault.Reason(err) != store.ReasonRevision {
			t.Errorf("with %s: %v, want Conflict with reason REVISION", same.GetMeta().GetName(), err)
		}
	}
	if _, err := s.Get(t.Context(), record.Key{Kind: record.Disk, Name: "late"}); !errors.Is(err, fault.NotFound) {
		t.Errorf("got %v, want nothing written", err)
	}
	now, err := s.Get(t.Context(), record.KeyOf(seen))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), store.Change{Create: []*record.Resource{disk("late")}, Same: []*record.Resource{now}}); err != nil {
		t.Errorf("with the newest: %v", err)
	}
}

func TestStore_ListsAndRemoves400(t *testing.T) {
	s, c := start(t)
	for i := range 400 {
		create(t, s, disk(fmt.Sprintf("d%03d", i)))
	}
	seen, after, rev := map[string]bool{}, "", uint64(0)
	for {
		page, err := s.List(t.Context(), record.Disk, after, 64, rev)
		if err != nil {
			t.Fatal(err)
		}
		rev = page.Revision
		for _, r := range page.Records {
			seen[r.GetMeta().GetName()], after = true, r.GetMeta().GetName()
			if _, err := s.Commit(t.Context(), store.Change{Remove: []*record.Resource{r}}); err != nil {
				t.Fatal(err)
			}
		}
		if !page.More {
			break
		}
	}
	if len(seen) != 400 {
		t.Errorf("got %d records, want 400", len(seen))
	}
	left, err := c.Get(t.Context(), "/test/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Kvs) != 0 {
		t.Errorf("got %d keys left, the first %s, want none", len(left.Kvs), left.Kvs[0].Key)
	}
}

func TestStore_RefusesWhatIsTooLarge(t *testing.T) {
	s, _ := start(t)
	r := disk("d1")
	r.Meta.Labels = map[string]string{"k": strings.Repeat("x", 400<<10)}
	if _, err := s.Create(t.Context(), r, store.Change{}, "", r); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v, want Invalid", err)
	}
}

func TestStore_NewestIsTheLastWriteOfWhatIsThere(t *testing.T) {
	s, _ := start(t)
	if got, err := s.Newest(t.Context()); err != nil || got != 0 {
		t.Errorf("of nothing: got %d and %v, want 0", got, err)
	}
	var last *record.Resource
	for _, name := range []string{"b", "a"} {
		r := disk(name)
		made, err := s.Create(t.Context(), r, store.Change{}, "request "+name, r)
		if err != nil {
			t.Fatal(err)
		}
		last = made
	}
	if _, err := s.Incarnation(t.Context()); err != nil { // raises the revision of the whole, and is no record
		t.Fatal(err)
	}
	if got, err := s.Newest(t.Context()); err != nil || got != last.GetMeta().GetRevision() {
		t.Errorf("got %d and %v, want %d", got, err, last.GetMeta().GetRevision())
	}
}

func TestStore_SaysThatARevisionIsCompacted(t *testing.T) {
	s, c := start(t)
	first := create(t, s, disk("d1"))
	last := create(t, s, disk("d2"))
	if _, err := c.Compact(t.Context(), int64(last.GetMeta().GetRevision())); err != nil {
		t.Fatal(err)
	}
	_, err := s.List(t.Context(), record.Disk, "", 10, first.GetMeta().GetRevision())
	if !errors.Is(err, fault.Conflict) || fault.Reason(err) != store.ReasonCompacted {
		t.Errorf("got %v, want Conflict with reason COMPACTED", err)
	}
}

func TestStore_NamesABrokenRecord(t *testing.T) {
	s, c := start(t)
	if _, err := c.Put(t.Context(), "/test/r/disk/d1", "\xff\xff"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), record.Key{Kind: record.Disk, Name: "d1"})
	if err == nil || errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "/test/r/disk/d1") {
		t.Errorf("got %v, want an error that names the key", err)
	}
}
