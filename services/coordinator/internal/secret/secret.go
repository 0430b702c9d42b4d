// Package secret owns secrets: their form in etcd, encrypted, the keys that encrypt
// them, and SecretService, by which operators put them and nodes are given them.
//
// A value is never logged, never part of an error, and given only to the node of a
// sandbox whose spec refers to it. Ciphertexts are bound to the name of their secret,
// so that one cannot be passed off as another. The package must never give a value
// to a person, nor keep one in memory. In the trail it stands beside api: what a
// sandbox refers to is fetched here by its node before its containers are made.
package secret

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

// Bounds.
const (
	maxEntries = 64
	maxTotal   = 1 << 20 // of the values of one secret, in bytes
	maxSecrets = 4096
	maxRefs    = 32 // secrets that one sandbox refers to
)

// wanted is what a spec wants of one secret.
type wanted struct {
	all  bool // there is a mount of all its keys
	keys map[string]bool
}

// references lists what a spec wants, by the names of secrets.
func references(spec *resourcev1.SandboxSpec) map[string]*wanted {
	refs := map[string]*wanted{}
	of := func(name string) *wanted {
		if refs[name] == nil {
			refs[name] = &wanted{keys: map[string]bool{}}
		}
		return refs[name]
	}
	for _, c := range spec.GetContainers() {
		for _, v := range c.GetEnv() {
			if s := v.GetSecret(); s != nil {
				of(s.GetName()).keys[s.GetKey()] = true
			}
		}
		for _, m := range c.GetSecrets() {
			w := of(m.GetSecret())
			w.all = w.all || len(m.GetFiles()) == 0
			for _, f := range m.GetFiles() {
				w.keys[f.GetKey()] = true
			}
		}
	}
	return refs
}

// lacks lists the wanted keys that a secret does not have.
func (w *wanted) lacks(s *coordinatorv1.Secret) []string {
	var missing []string
	for key := range w.keys {
		if !slices.Contains(s.GetKeys(), key) {
			missing = append(missing, key)
		}
	}
	slices.Sort(missing)
	return missing
}

// pick keeps the wanted entries.
func (w *wanted) pick(entries []*resourcev1.SecretEntry) []*resourcev1.SecretEntry {
	return slices.DeleteFunc(slices.Clone(entries), func(e *resourcev1.SecretEntry) bool { return !w.all && !w.keys[e.GetKey()] })
}

// merged is what a secret holds after a request, ordered by key.
func merged(old []*resourcev1.SecretEntry, req *coordinatorv1.PutSecretRequest) ([]*resourcev1.SecretEntry, error) {
	next := slices.Clone(req.GetEntries())
	for _, e := range old {
		named := slices.ContainsFunc(next, func(n *resourcev1.SecretEntry) bool { return n.GetKey() == e.GetKey() })
		if !named && !req.GetReplace() {
			next = append(next, e)
		}
	}
	slices.SortFunc(next, func(a, b *resourcev1.SecretEntry) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	total := 0
	for _, e := range next {
		total += len(e.GetValue())
	}
	var problems []string
	if len(next) > maxEntries {
		problems = append(problems, fmt.Sprintf("it would have %d entries, at most %d are kept", len(next), maxEntries))
	}
	if total > maxTotal {
		problems = append(problems, fmt.Sprintf("its values would have %d bytes, at most %d are kept", total, maxTotal))
	}
	if len(problems) > 0 {
		return nil, fault.New(fault.Invalid, "put secret %s: %s; make several secrets of it", req.GetName(), strings.Join(problems, "; "))
	}
	return next, nil
}

func sameEntries(a, b []*resourcev1.SecretEntry) bool {
	return slices.EqualFunc(a, b, func(x, y *resourcev1.SecretEntry) bool {
		return x.GetKey() == y.GetKey() && string(x.GetValue()) == string(y.GetValue())
	})
}

func keysOf(entries []*resourcev1.SecretEntry) []string {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.GetKey()
	}
	return keys
}
