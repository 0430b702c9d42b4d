package command_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
)

// fakeSecrets keeps what was put last.
type fakeSecrets struct {
	coordinatorv1.UnimplementedSecretServiceServer
	put   *coordinatorv1.PutSecretRequest
	force []bool
}

func (f *fakeSecrets) PutSecret(_ context.Context, req *coordinatorv1.PutSecretRequest) (*coordinatorv1.PutSecretResponse, error) {
	f.put = req
	s := &coordinatorv1.Secret{Name: req.GetName(), Revision: 7}
	for _, e := range req.GetEntries() {
		s.Keys = append(s.Keys, e.GetKey())
	}
	return &coordinatorv1.PutSecretResponse{Secret: s}, nil
}

func (f *fakeSecrets) ListSecrets(context.Context, *coordinatorv1.ListSecretsRequest) (*coordinatorv1.ListSecretsResponse, error) {
	return &coordinatorv1.ListSecretsResponse{Secrets: []*coordinatorv1.Secret{{Name: "db", Keys: []string{"a", "b"}, Revision: 7}}}, nil
}

func (f *fakeSecrets) DeleteSecret(_ context.Context, req *coordinatorv1.DeleteSecretRequest) (*coordinatorv1.DeleteSecretResponse, error) {
	f.force = append(f.force, req.GetForce())
	if !req.GetForce() {
		return nil, fault.WithReason(fault.New(fault.Conflict, "delete secret db: sandboxes refer to it: web"), "IN_USE")
	}
	return &coordinatorv1.DeleteSecretResponse{}, nil
}

func TestSecret_Set(t *testing.T) {
	c := newCluster(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("of a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := cliIn(t.Context(), "of the input\n", c.flags("secret", "set", "db", "a=x=y", "empty=", "--from-file", "f="+file, "--from-stdin", "in", "--replace")...)
	if r.code != 0 || !strings.Contains(r.out, "secret db has") {
		t.Fatalf("code %d\n%s%s", r.code, r.out, r.err)
	}
	var got []string
	for _, e := range c.secrets.put.GetEntries() {
		got = append(got, e.GetKey()+"="+string(e.GetValue()))
	}
	if want := []string{"a=x=y", "empty=", "f=of a file\n", "in=of the input\n"}; !slices.Equal(got, want) || !c.secrets.put.GetReplace() {
		t.Errorf("put %q with replace %t, want %q", got, c.secrets.put.GetReplace(), want)
	}
	for _, bad := range [][]string{
		{"secret", "set", "db"}, {"secret", "set", "db", "hush"}, {"secret", "set", "db", "=hush"}, {"secret", "set", "db", "a=1", "a=2"},
		{"secret", "set", "DB", "a=1"}, {"secret", "set", "db", "--from-file", "nothing"},
		{"run", "--secret", "db", "i"}, {"run", "--env-from-secret", "A=db", "i"},
	} {
		r := cliIn(t.Context(), "", c.flags(bad...)...)
		if r.code != 2 || strings.Contains(r.err, "hush") {
			t.Errorf("%v: code %d, want 2 and no value in %q", bad, r.code, r.err)
		}
	}
}

func TestSecret_ListAndRemove(t *testing.T) {
	c := newCluster(t)
	r := cliIn(t.Context(), "", c.flags("secret", "ls")...)
	if r.code != 0 || !strings.Contains(r.out, "db") || !strings.Contains(r.out, "a,b") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	r = cliIn(t.Context(), "", c.flags("secret", "rm", "db")...)
	if r.code == 0 || !strings.Contains(r.err, "web") || !strings.Contains(r.err, "secret rm --force db") {
		t.Errorf("one in use: code %d\n%s", r.code, r.err)
	}
	if r = cliIn(t.Context(), "", c.flags("secret", "rm", "--force", "db")...); r.code != 0 || !slices.Equal(c.secrets.force, []bool{false, true}) {
		t.Errorf("by force: code %d, asked %v\n%s", r.code, c.secrets.force, r.err)
	}
}

func TestRun_Secrets(t *testing.T) {
	c := newCluster(t)
	r := cliIn(t.Context(), "", c.flags("run", "-d", "--name", "web", "--init", "--env-from-secret", "P=db:password", "--secret", "tls:/tls:0440", "example.org/web:1")...)
	if r.code != 0 {
		t.Fatalf("code %d\n%s%s", r.code, r.out, r.err)
	}
	main := c.record(resourcev1.Kind_KIND_SANDBOX, "web").GetSandbox().GetSpec().GetContainers()[0]
	ref, mount := main.GetEnv()[0].GetSecret(), main.GetSecrets()[0]
	if !main.GetInitProcess() || ref.GetName() != "db" || ref.GetKey() != "password" || mount.GetSecret() != "tls" || mount.GetPath() != "/tls" || mount.GetMode() != "0440" {
		t.Errorf("got %v", main)
	}
}
