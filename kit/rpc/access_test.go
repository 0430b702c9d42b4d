package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// Every rule of the contract, for every role, locally and remotely.
func TestAdmit_EveryRule(t *testing.T) {
	methods, err := contracts()
	must(t, err)
	for _, c := range contract {
		for number := range optionsv1.Role_name {
			role := optionsv1.Role(number)
			for _, remote := range []bool{false, true} {
				want := slices.Contains(c.local, role)
				if remote {
					want = slices.Contains(c.remote, role)
				}
				id := Identity{Role: role, Name: "x", Remote: remote}
				err := admit(id, full(c.name), methods[full(c.name)], nil)
				if (err == nil) != want {
					t.Errorf("%s as %s, remote %v: %v, want admitted %v", c.name, role, remote, err, want)
				}
				if err != nil {
					wantKind(t, err, fault.Denied)
				}
			}
		}
	}
	wantKind(t, admit(Identity{Role: operator}, "/no.Such/Method", methods["/no.Such/Method"], nil), fault.Denied)
	wantKind(t, admit(Identity{}, "/grpc.health.v1.Health/Check", methods["/grpc.health.v1.Health/Check"], nil), fault.Denied)
}

func TestAdmit_AnonymousOnlyWhereListed(t *testing.T) {
	m := method{access: &optionsv1.AccessRule{Remote: roles(operator)}}
	stranger := Identity{Remote: true, Name: "anonymous"}
	if err := admit(stranger, full("Join"), m, []string{full("Join")}); err != nil {
		t.Error(err)
	}
	wantKind(t, admit(stranger, full("Read"), m, []string{full("Join")}), fault.Denied)
	wantKind(t, admit(Identity{Name: "uid 5"}, full("Join"), m, []string{full("Join")}), fault.Denied)
}

func TestMethodsWithoutRule(t *testing.T) {
	if got := MethodsWithoutRule(); !slices.Equal(got, []string{full("NoRule")}) {
		t.Errorf("got %v", got)
	}
}

func TestReadContracts_RefusesUnspecifiedRole(t *testing.T) {
	opts := &descriptorpb.MethodOptions{}
	proto.SetExtension(opts, optionsv1.E_Access, &optionsv1.AccessRule{Local: roles(optionsv1.Role_ROLE_UNSPECIFIED)})
	fd, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("bad.proto"), Package: proto.String("staddle.bad.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/empty.proto", "staddle/options/v1/options.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("S"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: proto.String("M"), Options: opts,
			InputType: proto.String(".google.protobuf.Empty"), OutputType: proto.String(".google.protobuf.Empty"),
		}}}},
	}, protoregistry.GlobalFiles)
	must(t, err)
	files := new(protoregistry.Files)
	must(t, files.RegisterFile(fd))
	_, err = readContracts(files)
	wantText(t, err, "/staddle.bad.v1.S/M", "ROLE_UNSPECIFIED")
}

// verdict is what a child process was told per method.
type verdict struct{ Kind, Text string }

// childCallAll calls every method of every service that the server has, and
// prints the outcomes.
func childCallAll() error {
	conn, err := Dial(os.Getenv("KIT_TEST_SOCKET"), DialConfig{FailFast: true, Process: os.Getenv("KIT_TEST_AS")})
	if err != nil {
		return err
	}
	defer conn.Close()
	out := map[string]verdict{}
	for _, name := range strings.Split(os.Getenv("KIT_TEST_METHODS"), ",") {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := callRaw(ctx, conn, name)
		cancel()
		v := verdict{Kind: "OK"}
		if err != nil {
			v = verdict{fault.KindOf(err).String(), err.Error()}
		}
		out[name] = v
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// callRaw opens any method as a stream, sends an empty message and reads one.
func callRaw(ctx context.Context, conn *grpc.ClientConn, name string) error {
	ss, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	if err := ss.SendMsg(&emptypb.Empty{}); err != nil {
		return ss.RecvMsg(&emptypb.Empty{})
	}
	if err := ss.CloseSend(); err != nil {
		return err
	}
	return ss.RecvMsg(&emptypb.Empty{})
}

// methodsOf lists every method that a server serves.
func methodsOf(n *node) []string {
	var out []string
	for name, info := range n.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			out = append(out, "/"+name+"/"+m.Name)
		}
	}
	slices.Sort(out)
	return out
}

func asUser(t *testing.T, n *node, exe string, cred *syscall.Credential, as string) map[string]verdict {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = []string{
		"KIT_TEST_ROLE=call-all", "KIT_TEST_SOCKET=" + n.path, "KIT_TEST_AS=" + as,
		"KIT_TEST_METHODS=" + strings.Join(methodsOf(n), ","),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("child: %v: %s", err, stderr.String())
	}
	var out map[string]verdict
	must(t, json.Unmarshal(stdout.Bytes(), &out))
	return out
}

func TestServer_RefusesAWrongUserOnEveryMethod(t *testing.T) {
	end := func(string, grpc.ServerStream) error { return nil }
	n := setup{users: config.Users{FirstID: 70000, AdminGroup: "4242"}, do: behaviour{stream: end}}.start(t)
	exe := reachableExe(t)

	for name, v := range asUser(t, n, exe, &syscall.Credential{Uid: 65534, Gid: 65534}, "") {
		if v.Kind != fault.Denied.String() || !strings.Contains(v.Text, "uid 65534") {
			t.Errorf("stranger on %s: %+v, want Denied", name, v)
		}
	}
	for name, v := range asUser(t, n, exe, &syscall.Credential{Uid: 65534, Gid: 65534}, "storage") {
		if v.Kind != fault.Denied.String() {
			t.Errorf("stranger who says that it is storage on %s: %+v, want Denied", name, v)
		}
	}
	storageUser := asUser(t, n, exe, &syscall.Credential{Uid: 70001, Gid: 70001}, "storage")
	for _, c := range contract {
		want := slices.Contains(c.local, storage)
		if got := storageUser[full(c.name)]; (got.Kind != fault.Denied.String()) != want {
			t.Errorf("storage's user on %s: %+v, want admitted %v", c.name, got, want)
		}
	}
	if got := storageUser["/staddle.process.v1.ProcessService/GetStatus"]; got.Kind != "OK" {
		t.Errorf("storage's user on GetStatus: %+v", got)
	}
	admin := asUser(t, n, exe, &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{17, 4242}}, "")
	for _, c := range contract {
		want := slices.Contains(c.local, operator)
		if got := admin[full(c.name)]; (got.Kind != fault.Denied.String()) != want {
			t.Errorf("member of the admin group on %s: %+v, want admitted %v", c.name, got, want)
		}
	}
}

func TestServer_SharedUserSaysWhichProcessItIs(t *testing.T) {
	n := setup{do: behaviour{unary: func(ctx context.Context, _, _ string) (string, error) {
		return Caller(ctx).Role.String(), nil
	}}}.start(t)
	for _, tc := range []struct{ process, method, want string }{
		{"", "Read", "ROLE_OPERATOR"},
		{"storage", "Read", "ROLE_STORAGE"},
		{"sandbox-agent", "AgentOnly", "ROLE_SANDBOX_AGENT"},
		{"", "AgentOnly", ""},
		{"nonsense", "Read", ""},
	} {
		got, err := call(t.Context(), dial(t, n.path, DialConfig{Process: tc.process}), tc.method, "")
		if tc.want == "" {
			wantKind(t, err, fault.Denied)
		} else if err != nil || got != tc.want {
			t.Errorf("%q calls %s: %q, %v, want %s", tc.process, tc.method, got, err, tc.want)
		}
	}
}

func TestServer_OnlyClusterAccessSpeaksForOthers(t *testing.T) {
	n := setup{do: behaviour{unary: func(ctx context.Context, _, _ string) (string, error) {
		id := Caller(ctx)
		md, _ := metadata.FromIncomingContext(ctx)
		return fmt.Sprintf("%s %s %v %d %d", id.Role, id.Name, id.Remote, len(md[CallerKey]), len(md[AsKey])), nil
	}}}.start(t)
	speak := func(who string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), CallerKey, who) }
	alice := "spiffe://staddle.local/user/alice"

	got, err := call(speak(alice), dial(t, n.path, DialConfig{Process: "clusteraccess"}), "Read", "")
	if want := "ROLE_OPERATOR " + alice + " true 0 0"; err != nil || got != want {
		t.Errorf("clusteraccess speaks: %q, %v, want %q", got, err, want)
	}
	got, err = call(speak(alice), dial(t, n.path, DialConfig{Process: "storage"}), "Read", "")
	if want := "ROLE_STORAGE uid 0 false 0 0"; err != nil || got != want {
		t.Errorf("storage speaks: %q, %v, want %q", got, err, want)
	}
	_, err = call(speak("spiffe://staddle.local/node/n1"), dial(t, n.path, DialConfig{Process: "clusteraccess"}), "Read", "")
	wantKind(t, err, fault.Denied)
	for _, bad := range []string{"alice", "spiffe://d/king/x", "spiffe://d/user/", "spiffe://d/user/a/b", "https://d/user/a", strings.Repeat("a", 600)} {
		_, err = call(speak(bad), dial(t, n.path, DialConfig{Process: "clusteraccess"}), "Read", "")
		wantKind(t, err, fault.Denied)
	}
}

func TestPeers_Roles(t *testing.T) {
	ranged := NewPeers(config.Users{FirstID: 70000, AdminGroup: "4242"})
	if got := ranged.roles(0, nil); !slices.Equal(got, roles(operator, optionsv1.Role_ROLE_SUPERVISOR)) {
		t.Errorf("root: %v", got)
	}
	for i, name := range config.Processes() {
		if got := ranged.roles(uint32(70000+i), []uint32{1}); !slices.Equal(got, roles(RoleOf(name))) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := ranged.roles(70007, []uint32{70007}); len(got) != 0 {
		t.Errorf("behind the range: %v", got)
	}
	if got := ranged.roles(1000, []uint32{5, 4242}); !slices.Equal(got, roles(operator)) {
		t.Errorf("admin: %v", got)
	}
	missing := NewPeers(config.Users{AdminGroup: "no-such-group-here"})
	if got := missing.roles(1000, []uint32{0}); len(got) != 0 {
		t.Errorf("missing admin group has a member: %v", got)
	}
	missing.admins = "4242" // as if it had been made after the start
	if got := missing.roles(1000, []uint32{5, 4242}); !slices.Equal(got, roles(operator)) {
		t.Errorf("admin of a group that is new: %v", got)
	}
}
