package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"
	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"
)

// nobody is a user of the machine without any role.
const nobody = 65534

// served is one method as a server describes it.
type served struct {
	name          string // as it is called
	local, remote []optionsv1.Role
	readOnly      bool
	everyRole     bool // gRPC's own services
}

// contract asks a server by reflection for each method that it serves.
func contract(t *testing.T, conn *grpc.ClientConn) []served {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	must(t, err)
	ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		must(t, stream.Send(r))
		answer, err := stream.Recv()
		must(t, err)
		return answer
	}
	var all []served
	list := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	for _, s := range list.GetListServicesResponse().GetService() {
		r := &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: s.GetName()}
		files := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: r}).GetFileDescriptorResponse().GetFileDescriptorProto()
		methods := describe(t, files, s.GetName())
		if len(methods) == 0 {
			t.Fatalf("the server does not describe %s", s.GetName())
		}
		all = append(all, methods...)
	}
	return all
}

// describe finds the methods of a service in the files that a server sent.
func describe(t *testing.T, files [][]byte, service string) []served {
	t.Helper()
	var all []served
	for _, raw := range files {
		var file descriptorpb.FileDescriptorProto
		must(t, proto.Unmarshal(raw, &file))
		for _, s := range file.GetService() {
			if file.GetPackage()+"."+s.GetName() != service {
				continue
			}
			for _, m := range s.GetMethod() {
				rule, _ := proto.GetExtension(m.GetOptions(), optionsv1.E_Access).(*optionsv1.AccessRule)
				all = append(all, served{
					name: "/" + service + "/" + m.GetName(), local: rule.GetLocal(), remote: rule.GetRemote(),
					readOnly:  m.GetOptions().GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS,
					everyRole: strings.HasPrefix(service, "grpc."),
				})
			}
		}
	}
	return all
}

// try calls a method with an empty message and returns what came of it. One that
// has not answered after a moment has not refused.
func try(ctx context.Context, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(&emptypb.Empty{}) // an error of sending is told by the answer
	_ = stream.CloseSend()
	return stream.RecvMsg(&emptypb.Empty{})
}

// callers are the users of a machine, by the role that each has.
func callers(t *testing.T, b *bed.Bed) map[optionsv1.Role]int {
	t.Helper()
	node, err := config.LoadNode(b.Paths.NodeFile())
	must(t, err)
	all := map[optionsv1.Role]int{optionsv1.Role_ROLE_OPERATOR: 0}
	for _, name := range config.Processes() {
		uid, ok := node.Users.ID(name)
		if !ok {
			t.Fatalf("%s has no user of its own: the test proves nothing", name)
		}
		all[rpc.RoleOf(name)] = uid
	}
	return all
}

// claims are what a caller may say of itself, and nobody believes.
func claims(ctx context.Context, process string) map[string]context.Context {
	return map[string]context.Context{
		"":            ctx,
		"as another":  metadata.AppendToOutgoingContext(ctx, rpc.AsKey, process),
		"for another": metadata.AppendToOutgoingContext(ctx, rpc.CallerKey, "spiffe://staddle/user/admin"),
	}
}

// On every socket of a machine every method refuses whoever its contract does not
// name, whatever the caller claims to be, and a user without a role is not even told
// whether the process is healthy. Methods that only read are called by all that may,
// to show that the others were not refused for another reason.
func TestMachine_EveryMethodRefusesOthers(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	refused, admitted := 0, 0
	for _, process := range append(slices.Clone(ourProcesses), "supervisor") {
		methods := contract(t, b.Conn(process))
		stranger := b.ConnAs(process, nobody)
		for _, m := range methods {
			for claim, ctx := range claims(t.Context(), "presence") {
				refused++
				if err := try(ctx, stranger, m.name); !errors.Is(err, fault.Denied) || !strings.Contains(err.Error(), "no role") {
					t.Errorf("%s: a stranger %s calls %s: got %v, want that it has no role", process, claim, m.name, err)
				}
			}
		}
		for role, uid := range callers(t, b) {
			conn := b.ConnAs(process, uid)
			for _, m := range methods {
				may := m.everyRole || slices.Contains(m.local, role)
				if may && (m.readOnly || m.everyRole) {
					admitted++
					if err := try(t.Context(), conn, m.name); errors.Is(err, fault.Denied) || errors.Is(err, fault.Unavailable) {
						t.Errorf("%s: %s calls %s: %v", process, role, m.name, err)
					}
				}
				if may {
					continue
				}
				for claim, ctx := range claims(t.Context(), "supervisor") {
					trusted := role == optionsv1.Role_ROLE_CLUSTERACCESS && claim == "for another" && slices.Contains(m.remote, optionsv1.Role_ROLE_OPERATOR)
					if trusted || uid == 0 && claim == "as another" { // root is the supervisor too
						continue
					}
					refused++
					if err := try(ctx, conn, m.name); !errors.Is(err, fault.Denied) {
						t.Errorf("%s: %s %s calls %s: got %v, want Denied", process, role, claim, m.name, err)
					}
				}
			}
		}
	}
	t.Logf("%d calls were refused, %d admitted", refused, admitted)
	if refused < 500 || admitted < 50 {
		t.Errorf("%d calls were refused and %d admitted: that is not every method of every socket", refused, admitted)
	}
}

// What is no socket of ours lets nobody in who has no business there.
func TestMachine_OtherSocketsLetNobodyIn(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "sleep")
	var others []string
	must(t, filepath.WalkDir(b.Paths.Run(), func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimSuffix(filepath.Base(path), ".sock")
		ours := filepath.Dir(path) == b.Paths.Run() && (slices.Contains(ourProcesses, name) || name == "supervisor")
		// The supervisor's mailbox takes a letter from anybody, and reads those of its children.
		if err == nil && d.Type() == fs.ModeSocket && !ours && name != "notify" {
			others = append(others, path)
		}
		return err
	}))
	if len(others) < 3 { // containerd's two, a shim's
		t.Fatalf("found %v, want containerd's sockets and that of a shim", others)
	}
	for _, path := range others {
		for role, uid := range callers(t, b) {
			if role == optionsv1.Role_ROLE_OPERATOR || role == optionsv1.Role_ROLE_SANDBOXHOST {
				continue
			}
			wantClosed(t, path, role.String(), uid)
		}
		wantClosed(t, path, "a stranger", nobody)
	}
	host := callers(t, b)[optionsv1.Role_ROLE_SANDBOXHOST]
	conn, err := bed.DialAs(filepath.Join(b.Paths.Run(), "containerd.sock"), host)
	if err != nil {
		t.Fatalf("sandboxhost does not reach containerd: %v", err)
	}
	must(t, conn.Close())
}

func wantClosed(t *testing.T, path, who string, uid int) {
	t.Helper()
	conn, err := bed.DialAs(path, uid)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.EACCES) {
		t.Errorf("%s connects to %s: got %v, want that it may not", who, path, err)
	}
}

// The coordinator's API is open to the network: without a certificate nobody gets
// as far as a call, and with one of another role every method that its contract does
// not open is refused.
func TestMachine_APIRefusesOthers(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	conn := tls.Client(b.DialAt("tcp", "127.0.0.1:8443"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	_, err := conn.Read(make([]byte, 1))
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: got %v, want that one is required", err)
	}
	_ = conn.Close()

	refused := 0
	for _, m := range contract(t, b.ConnAPI("operator")) {
		for identity, role := range map[string]optionsv1.Role{"operator": optionsv1.Role_ROLE_OPERATOR, "node": optionsv1.Role_ROLE_NODE} {
			if m.everyRole || slices.Contains(m.remote, role) {
				continue
			}
			refused++
			if err := try(t.Context(), b.ConnAPI(identity), m.name); !errors.Is(err, fault.Denied) {
				t.Errorf("%s calls %s: got %v, want Denied", identity, m.name, err)
			}
		}
	}
	if refused < 4 {
		t.Errorf("%d calls were refused, want those of sessions to people and of changes to nodes", refused)
	}
	if err := try(t.Context(), b.ConnAPI("node"), "/grpc.health.v1.Health/Check"); err != nil {
		t.Errorf("a node asks for health: %v", err)
	}
}
