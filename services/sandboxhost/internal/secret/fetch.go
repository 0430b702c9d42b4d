package secret

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"

	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Answer is what is known while values are not there.
type Answer struct {
	// Missing is true when the cluster does not have what is referred to, false when
	// it could not be asked.
	Missing bool
	// Sentence says what is missing, or why nobody could be asked.
	Sentence string
}

// askPolicy is how often the cluster is asked again that could not be asked.
var askPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Cap: 5 * time.Second, Stable: time.Minute}

// newerLimit bounds how long an attempt waits for newer values than those it has.
const newerLimit = 2 * time.Second

// client is the neighbour that asks the coordinator.
type client interface {
	ResolveSecrets(context.Context, *clusteraccessv1.ResolveSecretsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusteraccessv1.ResolveSecretsResponse], error)
}

// Fetcher fetches values.
type Fetcher struct {
	files  *Files
	client client
}

// NewFetcher returns one that keeps values in files.
func NewFetcher(files *Files, client client) *Fetcher { return &Fetcher{files: files, client: client} }

// Ready says whether an attempt with a spec may begin: its values are there, and there
// is no cause to ask for newer ones.
func (f *Fetcher) Ready(uid id.Sandbox, spec *resourcev1.SandboxSpec) bool {
	_, fresh := f.files.Has(uid, ReferencesOf(spec))
	return fresh
}

// Fetch returns when Ready is true, or ctx ends. What it is waiting for it tells,
// whenever that changes. Values that are there but not fresh are taken as they are
// where newer ones cannot be had at once.
func (f *Fetcher) Fetch(ctx context.Context, uid id.Sandbox, spec *resourcev1.SandboxSpec, tell func(Answer)) {
	refs := ReferencesOf(spec)
	if there, _ := f.files.Has(uid, refs); there && f.newer(ctx, uid, refs) == nil {
		return
	}
	for try := 1; ctx.Err() == nil; {
		began := time.Now()
		err := f.ask(ctx, uid, refs, func(missing string) error {
			tell(Answer{Missing: true, Sentence: missing})
			return nil
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		tell(Answer{Sentence: err.Error()})
		wait := askPolicy.Delay(try, rand.Float64())
		try = askPolicy.Next(try, time.Since(began))
		if backoff.Wait(ctx, wait) != nil {
			return
		}
	}
}

var errStillMissing = errors.New("it is missing by now")

// newer tries once to replace values that are there, and takes them as they are if it
// cannot.
func (f *Fetcher) newer(ctx context.Context, uid id.Sandbox, refs References) error {
	limited, cancel := context.WithTimeout(ctx, newerLimit)
	defer cancel()
	if err := f.ask(limited, uid, refs, func(string) error { return errStillMissing }); err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if there, _ := f.files.Has(uid, refs); !there { // half replaced when it failed
		return fault.New(fault.Unavailable, "keep secrets of sandbox %s: they are gone", uid)
	}
	return f.files.refresh(uid)
}

// ask asks once, waits while something is missing, and keeps what it was given.
func (f *Fetcher) ask(ctx context.Context, uid id.Sandbox, refs References, missing func(string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.client.ResolveSecrets(ctx, &clusteraccessv1.ResolveSecretsRequest{SandboxUid: string(uid)})
	if err != nil {
		return err
	}
	var all []*resourcev1.SecretData
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if data := msg.GetSecret(); data != nil {
			all = append(all, data)
			continue
		}
		if err := missing(msg.GetMissing()); err != nil {
			return err
		}
	}
	if lacking := refs.lacking(all); lacking != "" {
		return fault.New(fault.Unavailable, "fetch secrets of sandbox %s: the coordinator's record of it refers to others, not to %s", uid, lacking)
	}
	return f.files.Keep(uid, refs, all)
}
