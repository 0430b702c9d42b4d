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
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
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

// methodsOf asks a server by reflection for every method that it serves, as anybody
// with a role can.
func methodsOf(t *testing.T, n *node) []string {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(dial(t, n.path, DialConfig{})).ServerReflectionInfo(t.Context())
	must(t, err)
	ask := func(req *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		must(t, stream.Send(req))
		answer, err := stream.Recv()
		must(t, err)
		return answer
	}
	var out []string
	list := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	for _, s := range list.GetListServicesResponse().GetService() {
		files := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: s.GetName(),
		}})
		for _, raw := range files.GetFileDescriptorResponse().GetFileDescriptorProto() {
			out = append(out, methodsIn(t, raw, s.GetName())...)
		}
	}
	must(t, stream.CloseSend())
	slices.Sort(out)
	return out
}

func methodsIn(t *testing.T, raw []byte, service string) []string {
	t.Helper()
	var file descriptorpb.FileDescriptorProto
	must(t, proto.Unmarshal(raw, &file))
	var out []string
	for _, s := range file.GetService() {
		if file.GetPackage()+"."+s.GetName() != service {
			continue
		}
		for _, m := range s.GetMethod() {
			out = append(out, "/"+service+"/"+m.GetName())
		}
	}
	return out
}

func asUser(t *testing.T, n *node, exe string, methods []string, cred syscall.Credential, as string) map[string]verdict {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = []string{
		"KIT_TEST_ROLE=call-all", "KIT_TEST_SOCKET=" + n.path, "KIT_TEST_AS=" + as,
		"KIT_TEST_METHODS=" + strings.Join(methods, ","),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &cred}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("child: %v: %s", err, stderr.String())
	}
	var out map[string]verdict
	must(t, json.Unmarshal(stdout.Bytes(), &out))
	return out
}

// Every method of every service that reflection finds, unary or not, as users of the
// machine: whoever has no role is told so, whatever it claims to be, and whoever has
// one may call what the contract says. No handler hears of a call that was refused.
func TestServer_RefusesAWrongUserOnEveryMethod(t *testing.T) {
	var reached reachedBy
	n := setup{users: config.Users{FirstID: 70000, AdminGroup: "4242"}, do: reached.behaviour()}.start(t)
	exe, methods := reachableExe(t), methodsOf(t, n)
	for _, want := range []string{full("Read"), full("Talk"), "/grpc.health.v1.Health/Watch", "/staddle.process.v1.ProcessService/GetStatus"} {
		if !slices.Contains(methods, want) {
			t.Fatalf("reflection does not tell of %s: %v", want, methods)
		}
	}
	stranger := syscall.Credential{Uid: 65534, Gid: 65534}
	for _, claim := range []string{"", "clusteraccess", "storage", "supervisor", "nonsense"} {
		for name, v := range asUser(t, n, exe, methods, stranger, claim) {
			if v.Kind != fault.Denied.String() || !strings.Contains(v.Text, "uid 65534") {
				t.Errorf("stranger who says it is %q on %s: %+v, want Denied", claim, name, v)
			}
		}
	}
	if got := reached.by(65534); len(got) > 0 {
		t.Errorf("handlers of %v were reached by the stranger", got)
	}
	for i, process := range config.Processes() {
		uid := uint32(70000 + i)
		got := asUser(t, n, exe, methods, syscall.Credential{Uid: uid, Gid: uid}, process)
		checkRole(t, process, RoleOf(process), got, reached.by(int(uid)))
	}
	admin := syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{17, 4242}}
	checkRole(t, "member of the admin group", operator, asUser(t, n, exe, methods, admin, ""), reached.by(65534))
}

// checkRole compares what a caller was told, and which handlers it reached, with the
// contract.
func checkRole(t *testing.T, who string, role optionsv1.Role, got map[string]verdict, reached []string) {
	t.Helper()
	methods, err := contracts()
	must(t, err)
	for name, v := range got {
		want := methods[name].forEveryone || slices.Contains(methods[name].access.GetLocal(), role)
		if admitted := v.Kind != fault.Denied.String(); admitted != want {
			t.Errorf("%s on %s: %+v, want admitted %v", who, name, v, want)
		}
		if service(name) == testService && slices.Contains(reached, name) != want {
			t.Errorf("%s reached the handler of %s: %v, want %v", who, name, !want, want)
		}
	}
}

// reachedBy notes who got through to which handler.
type reachedBy struct {
	mu    sync.Mutex
	calls map[int][]string
}

func (r *reachedBy) note(ctx context.Context, method string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[int][]string{}
	}
	uid := Caller(ctx).UID
	r.calls[uid] = append(r.calls[uid], full(method))
}

func (r *reachedBy) by(uid int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[uid])
}

func (r *reachedBy) behaviour() behaviour {
	return behaviour{
		unary: func(ctx context.Context, method, in string) (string, error) { r.note(ctx, method); return in, nil },
		stream: func(method string, ss grpc.ServerStream) error {
			r.note(ss.Context(), method)
			return ss.SendMsg(&emptypb.Empty{})
		},
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
