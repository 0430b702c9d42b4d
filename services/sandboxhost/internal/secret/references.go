package secret

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// References are what a spec refers to: by name of the secret the keys, ordered; none
// stands for all of them.
type References map[string][]string

// ReferencesOf lists what a spec refers to.
func ReferencesOf(spec *resourcev1.SandboxSpec) References {
	keys, all := map[string]map[string]bool{}, map[string]bool{}
	add := func(name string, key ...string) {
		if keys[name] == nil {
			keys[name] = map[string]bool{}
		}
		for _, k := range key {
			keys[name][k] = true
		}
	}
	for _, c := range spec.GetContainers() {
		for _, v := range c.GetEnv() {
			if s := v.GetSecret(); s != nil {
				add(s.GetName(), s.GetKey())
			}
		}
		for _, m := range c.GetSecrets() {
			add(m.GetSecret())
			all[m.GetSecret()] = all[m.GetSecret()] || len(m.GetFiles()) == 0
			for _, file := range m.GetFiles() {
				add(m.GetSecret(), file.GetKey())
			}
		}
	}
	refs := References{}
	for name, of := range keys {
		refs[name] = slices.Sorted(maps.Keys(of))
		if all[name] {
			refs[name] = append([]string{"*"}, refs[name]...)
		}
	}
	return refs
}

// mark is the same for the same references only.
func (r References) mark() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "%s %s\n", name, strings.Join(r[name], " "))
	}
	return b.String()
}

// lacking says what of the references is not among some secrets, empty if all is.
func (r References) lacking(all []*resourcev1.SecretData) string {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		i := slices.IndexFunc(all, func(d *resourcev1.SecretData) bool { return d.GetName() == name })
		if i < 0 {
			missing = append(missing, "secret "+name)
			continue
		}
		for _, key := range r[name] {
			if key != "*" && Value(all[i], key) == nil {
				missing = append(missing, "key "+key+" of secret "+name)
			}
		}
	}
	return strings.Join(missing, ", ")
}

// Value is the value of a key, nil if the secret does not have it.
func Value(data *resourcev1.SecretData, key string) []byte {
	for _, e := range data.GetEntries() {
		if e.GetKey() == key {
			return append([]byte{}, e.GetValue()...)
		}
	}
	return nil
}
