package secret

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

// witnessed is a store that keeps the witness alone.
type witnessed struct{ sealed []byte }

func (w *witnessed) Witness(context.Context) ([]byte, error) { return w.sealed, nil }

func (w *witnessed) MakeWitness(_ context.Context, sealed []byte) (bool, error) {
	if w.sealed != nil {
		return false, nil
	}
	w.sealed = sealed
	return true, nil
}

func (w *witnessed) SetWitness(_ context.Context, sealed []byte) error {
	w.sealed = sealed
	return nil
}

func sealOf(t *testing.T, k *keyring, w *witnessed, text string) []byte {
	t.Helper()
	cipher, err := k.ready(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := cipher.Encrypt([]byte(text), bound("db"))
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func opens(t *testing.T, k *keyring, w *witnessed, sealed []byte, name string) bool {
	t.Helper()
	cipher, err := k.ready(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cipher.Decrypt(sealed, bound(name))
	return err == nil && string(text) == "hush"
}

func TestKeyring_OldKeysReadAfterRotation(t *testing.T) {
	path, w := filepath.Join(t.TempDir(), "coordinator", "secrets.keys"), &witnessed{}
	k := &keyring{path: path}
	old := sealOf(t, k, w, "hush")
	if err := k.rotate(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	next := sealOf(t, k, w, "hush")
	again := &keyring{path: path} // after a restart
	for what, sealed := range map[string][]byte{"before": old, "after": next} {
		if !opens(t, again, w, sealed, "db") {
			t.Errorf("what was sealed %s the rotation cannot be read", what)
		}
		if opens(t, again, w, sealed, "other") {
			t.Errorf("what was sealed %s the rotation is read as another secret", what)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of keys has mode %v, %v", info.Mode(), err)
	}
}

// Who finds keys that it does not know has them read again, at any moment of a rotation.
func TestKeyring_RotatesWhileOthersReadAgain(t *testing.T) {
	k, w := &keyring{path: filepath.Join(t.TempDir(), "secrets.keys")}, &witnessed{}
	old := sealOf(t, k, w, "hush")
	ctx, enough := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			k.again()
		}
	})
	for range 20 {
		if err := k.rotate(t.Context(), w); err != nil {
			t.Error(err)
		}
	}
	enough()
	others.Wait()
	if !opens(t, k, w, old, "db") {
		t.Error("what was sealed before cannot be read")
	}
}

// Keys that are lost, foreign, damaged or open to others are an error that says what
// to do, never a new key.
func TestKeyring_NeverReplacesKeys(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, path string)
		says  string
	}{
		"lost":    {func(t *testing.T, path string) { must(t, os.Remove(path)) }, "put "},
		"damaged": {func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("{"), 0o600)) }, "put it back"},
		"open":    {func(t *testing.T, path string) { must(t, os.Chmod(path, 0o644)) }, "chmod 600"},
		"foreign": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			sealOf(t, &keyring{path: path}, &witnessed{}, "hush")
		}, "bring the file"},
	}
	for name, tt := range tests {
		path, w := filepath.Join(t.TempDir(), "secrets.keys"), &witnessed{}
		sealOf(t, &keyring{path: path}, w, "hush")
		tt.spoil(t, path)
		before, _ := os.ReadFile(path)
		_, err := (&keyring{path: path}).ready(t.Context(), w)
		if fault.Reason(err) != ReasonKeysMissing || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want it to say %q", name, err, tt.says)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMerged(t *testing.T) {
	entry := func(key, value string) *resourcev1.SecretEntry {
		return &resourcev1.SecretEntry{Key: key, Value: []byte(value)}
	}
	old := []*resourcev1.SecretEntry{entry("a", "1"), entry("c", "3")}
	put := func(replace bool, entries ...*resourcev1.SecretEntry) string {
		next, err := merged(old, &coordinatorv1.PutSecretRequest{Name: "db", Entries: entries, Replace: replace})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, e := range next {
			all = append(all, e.GetKey()+string(e.GetValue()))
		}
		return strings.Join(all, " ")
	}
	for got, want := range map[string]string{
		put(false, entry("b", "2"), entry("a", "9")): "a9 b2 c3",
		put(true, entry("b", "2")):                   "b2",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	large := strings.Repeat("x", 64<<10)
	var many []*resourcev1.SecretEntry
	for i := range 17 {
		many = append(many, entry(string(rune('d'+i)), large))
	}
	if got := put(false, many...); !strings.Contains(got, "1114114 bytes") || strings.Contains(got, "xxx") {
		t.Errorf("17 values of 64 KiB: got %.200q", got)
	}
}

func TestReferences(t *testing.T) {
	spec := &resourcev1.SandboxSpec{Containers: []*resourcev1.ContainerSpec{
		{Env: []*resourcev1.EnvironmentVariable{{Name: "A"}, {Name: "B", Secret: &resourcev1.SecretReference{Name: "db", Key: "b"}}}},
		{Secrets: []*resourcev1.SecretMount{{Secret: "tls"}, {Secret: "db", Files: []*resourcev1.SecretFile{{Key: "f"}}}}},
	}}
	refs := references(spec)
	if len(refs) != 2 || refs["db"].all || !refs["db"].keys["b"] || !refs["db"].keys["f"] || !refs["tls"].all {
		t.Errorf("got %+v", refs)
	}
	if got := refs["db"].lacks(&coordinatorv1.Secret{Keys: []string{"b"}}); len(got) != 1 || got[0] != "f" {
		t.Errorf("lacks %v, want f", got)
	}
	picked := refs["db"].pick([]*resourcev1.SecretEntry{{Key: "b"}, {Key: "other"}})
	if len(picked) != 1 || picked[0].GetKey() != "b" {
		t.Errorf("picked %v, want what is referred to", picked)
	}
}
