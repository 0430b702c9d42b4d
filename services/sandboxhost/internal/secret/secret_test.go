package secret

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// specOf refers to one key of a secret, and to all of another.
func specOf() *resourcev1.SandboxSpec {
	return &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{{
		Env:     []*resourcev1.EnvironmentVariable{{Name: "A"}, {Name: "P", Secret: &resourcev1.SecretReference{Name: "db", Key: "password"}}},
		Secrets: []*resourcev1.SecretMount{{Secret: "tls", Path: "/tls"}},
	}}}
}

func dataOf(password string) []*resourcev1.SecretData {
	return []*resourcev1.SecretData{
		{Name: "db", Entries: []*resourcev1.SecretEntry{{Key: "password", Value: []byte(password)}}}, {Name: "tls"},
	}
}

// filesFor are files in a folder of the test, of which nothing is left mounted.
func filesFor(t *testing.T) (*Files, id.Sandbox) {
	t.Helper()
	f, uid := NewFiles(filepath.Join(t.TempDir(), "secrets")), id.NewSandbox()
	t.Cleanup(func() { must(t, f.Remove(uid)) })
	return f, uid
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFiles_AreMemoryUntilRemoved(t *testing.T) {
	f, uid := filesFor(t)
	refs := ReferencesOf(specOf())
	if there, _ := f.Has(uid, refs); there {
		t.Error("values are there before any were kept")
	}
	for _, password := range []string{"one", "two"} { // the second in place of the first
		must(t, f.Keep(uid, refs, dataOf(password)))
		data, err := f.Read(uid, "db")
		must(t, err)
		if got := string(Value(data, "password")); got != password {
			t.Errorf("got %q, want %q", got, password)
		}
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(f.of(uid), &st))
	info, err := os.Stat(f.of(uid))
	must(t, err)
	if st.Type != unix.TMPFS_MAGIC || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is of type %x with mode %v, want memory for root alone", st.Type, info.Mode())
	}
	if there, fresh := f.Has(uid, refs); !there || !fresh {
		t.Errorf("there %t, fresh %t", there, fresh)
	}
	must(t, f.Age(uid))
	must(t, f.Age(uid))
	if there, fresh := f.Has(uid, refs); !there || fresh {
		t.Errorf("aged: there %t, fresh %t", there, fresh)
	}
	if there, _ := f.Has(uid, References{"db": {"password"}}); there {
		t.Error("values count for other references")
	}
	if uids, err := f.Sandboxes(); err != nil || len(uids) != 1 || uids[0] != uid {
		t.Errorf("got %v, %v", uids, err)
	}
	must(t, f.Remove(uid))
	if there, err := f.Kept(uid); there || err != nil {
		t.Errorf("left: %t, %v", there, err)
	}
	if _, err := f.Read(uid, "db"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("read what is gone: %v", err)
	}
}

// cluster answers as it is told.
type cluster struct {
	mu      sync.Mutex
	err     error
	data    []*resourcev1.SecretData
	asked   int
	changed chan struct{}
}

func newCluster() *cluster { return &cluster{changed: make(chan struct{})} }

func (c *cluster) set(err error, data []*resourcev1.SecretData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.data = err, data
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) ResolveSecrets(ctx context.Context, _ *clusteraccessv1.ResolveSecretsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[clusteraccessv1.ResolveSecretsResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return &answers{ctx: ctx, of: c}, c.err
}

type answers struct {
	grpc.ServerStreamingClient[clusteraccessv1.ResolveSecretsResponse]
	ctx  context.Context //nolint:containedctx // of one call
	of   *cluster
	said bool
	sent int
}

func (a *answers) Recv() (*clusteraccessv1.ResolveSecretsResponse, error) {
	for {
		a.of.mu.Lock()
		data, changed := a.of.data, a.of.changed
		a.of.mu.Unlock()
		switch {
		case data == nil && !a.said:
			a.said = true
			return &clusteraccessv1.ResolveSecretsResponse{Event: &clusteraccessv1.ResolveSecretsResponse_Missing{Missing: "there is no secret db"}}, nil
		case data != nil && a.sent == len(data):
			return nil, io.EOF
		case data != nil:
			a.sent++
			return &clusteraccessv1.ResolveSecretsResponse{Event: &clusteraccessv1.ResolveSecretsResponse_Secret{Secret: data[a.sent-1]}}, nil
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return nil, context.Cause(a.ctx)
		}
	}
}

// It tells what it waits for, and returns when the values are there.
func TestFetch_WaitsAndTells(t *testing.T) {
	f, uid := filesFor(t)
	c := newCluster()
	c.set(fault.New(fault.Unavailable, "away"), nil)
	fetcher, told := NewFetcher(f, c), make(chan Answer, 100)
	done := make(chan struct{})
	go func() { // ends below
		defer close(done)
		fetcher.Fetch(t.Context(), uid, specOf(), func(a Answer) { told <- a })
	}()
	await := func(want Answer) {
		t.Helper()
		limit := time.After(30 * time.Second)
		for last := (Answer{}); last != want; {
			select {
			case last = <-told:
			case <-limit:
				t.Fatalf("told %+v last, want %+v", last, want)
			}
		}
	}
	await(Answer{Sentence: "away"})
	c.set(nil, nil)
	await(Answer{Missing: true, Sentence: "there is no secret db"})
	if fetcher.Ready(uid, specOf()) {
		t.Error("ready without values")
	}
	c.set(nil, dataOf("one"))
	<-done
	if !fetcher.Ready(uid, specOf()) || !fetcher.Ready(uid, &resourcev1.SandboxSpec{}) {
		t.Error("not ready")
	}
}

// Values that are there are replaced if that can be done at once, and else taken.
func TestFetch_TakesWhatThereIs(t *testing.T) {
	f, uid := filesFor(t)
	refs := ReferencesOf(specOf())
	must(t, f.Keep(uid, refs, dataOf("old")))
	c := newCluster()
	for i, tt := range []struct {
		err  error
		data []*resourcev1.SecretData
		want string
	}{
		{fault.New(fault.Unavailable, "away"), nil, "old"},
		{nil, nil, "old"},               // gone by now
		{nil, dataOf("new")[:1], "old"}, // not all
		{nil, dataOf("new"), "new"},
	} {
		must(t, f.Age(uid))
		c.set(tt.err, tt.data)
		NewFetcher(f, c).Fetch(t.Context(), uid, specOf(), func(a Answer) { t.Errorf("case %d: told %+v", i, a) })
		data, err := f.Read(uid, "db")
		must(t, err)
		if got := string(Value(data, "password")); got != tt.want {
			t.Errorf("case %d: got %q, want %q", i, got, tt.want)
		}
		if _, fresh := f.Has(uid, refs); !fresh {
			t.Errorf("case %d: not fresh", i)
		}
	}
}

// No error has a value.
func TestErrors_HaveNoValues(t *testing.T) {
	f, uid := filesFor(t)
	refs := References{"db": {"other"}}
	c := newCluster()
	c.set(nil, dataOf("hush"))
	err := NewFetcher(f, c).ask(t.Context(), uid, refs, func(string) error { return nil })
	if err == nil || strings.Contains(fmt.Sprintf("%+v", err), "hush") {
		t.Errorf("got %v", err)
	}
}
