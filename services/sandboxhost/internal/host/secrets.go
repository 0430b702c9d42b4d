package host

import (
	"context"
	"sync"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/secret"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Secrets fetches the values that specs refer to; a *secret.Fetcher.
type Secrets interface {
	// Ready says whether an attempt with a spec may begin.
	Ready(uid id.Sandbox, spec *resourcev1.SandboxSpec) bool
	// Fetch returns when Ready is true, or ctx ends, and tells what it waits for.
	Fetch(ctx context.Context, uid id.Sandbox, spec *resourcev1.SandboxSpec, tell func(secret.Answer))
}

// fetching is the fetch that a keeper has begun, if any. It belongs to the keeper's
// goroutine, but for what it said last.
type fetching struct {
	hash string // of the spec for which; empty while there is none
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex // guards said
	said *secret.Answer
}

// waitsForSecrets is the reason why an attempt may not begin for the values that its
// spec refers to. It begins to fetch them, and ends a fetch that nobody wants any more.
func (k *keeper) waitsForSecrets(ctx context.Context) string {
	spec := k.rec.GetWish().GetSpec()
	if k.host.deps.Secrets == nil || !refersToSecrets(spec) || !k.wantsSecrets() {
		k.endFetch()
		return ""
	}
	if k.fetch.hash == k.hash && !isClosed(k.fetch.done) {
		return k.fetch.reason()
	}
	k.endFetch()
	if k.host.deps.Secrets.Ready(k.uid, spec) {
		return ""
	}
	k.beginFetch(ctx, spec)
	return k.fetch.reason()
}

// wantsSecrets says whether an attempt is to begin, or goes on to.
func (k *keeper) wantsSecrets() bool {
	status := k.rec.GetStatus()
	return status.GetPhase() < running &&
		k.stillWanted(engine.Attempt{SpecHash: k.hash})
}

func (k *keeper) beginFetch(ctx context.Context, spec *resourcev1.SandboxSpec) {
	ctx, stop := context.WithCancel(ctx)
	f := &fetching{hash: k.hash, stop: stop, done: make(chan struct{})}
	k.fetch = f
	go func() { // ended by endFetch, which waits for it
		defer k.hint() // what was kept is to be observed
		defer close(f.done)
		k.host.deps.Secrets.Fetch(ctx, k.uid, spec, func(a secret.Answer) {
			if f.say(a) {
				k.log.Warn("secrets awaited", logging.Reason(a.Sentence))
				k.nudge()
			}
		})
	}()
}

// nudge makes the keeper decide again.
func (k *keeper) nudge() {
	select {
	case k.checked <- struct{}{}:
	default: // it will do so anyway
	}
}

// say takes what a fetch waits for, and reports whether that is another than before.
func (f *fetching) say(a secret.Answer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.said != nil && *f.said == a {
		return false
	}
	f.said = &a
	return true
}

// endFetch ends what is being fetched, if anything is, and waits for it.
func (k *keeper) endFetch() {
	if k.fetch.hash == "" {
		return
	}
	k.fetch.stop()
	<-k.fetch.done
	k.fetch = &fetching{}
}

// answer is what the fetch said last, nil if nothing yet.
func (f *fetching) answer() *secret.Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said
}

func (f *fetching) reason() string {
	switch a := f.answer(); {
	case a == nil:
		return ReasonWaitingForSecrets
	case a.Missing:
		return ReasonSecretMissing
	}
	return ReasonSecretsAway
}

// sentence says a reason to people.
func (k *keeper) sentence(reason string) string {
	if a := k.fetch.answer(); a != nil && (reason == ReasonSecretMissing || reason == ReasonSecretsAway) {
		return clip(sentences[reason] + ": " + a.Sentence)
	}
	return sentences[reason]
}

func refersToSecrets(spec *resourcev1.SandboxSpec) bool { return len(secret.ReferencesOf(spec)) > 0 }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
