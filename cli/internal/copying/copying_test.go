package copying_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/copying"
)

// node sends a stream out by a script, and remembers what comes in.
type node struct {
	sandboxhostv1.UnimplementedCopyServiceServer
	out func(grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]) error
	in  chan error // how a stream that came in ended
}

func (n node) CopyOut(_ *sandboxhostv1.CopyOutRequest, st grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]) error {
	return n.out(st)
}

func (n node) CopyIn(st grpc.ClientStreamingServer[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse]) error {
	for {
		m, err := st.Recv()
		if err != nil || m.GetDataEnd() {
			n.in <- err
			return errors.Join(err, st.SendAndClose(&sandboxhostv1.CopyInResponse{Report: &sandboxhostv1.CopyReport{Entries: 1}}))
		}
	}
}

func client(t *testing.T, n node) sandboxhostv1.CopyServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.StreamInterceptor(fault.StreamServer))
	sandboxhostv1.RegisterCopyServiceServer(server, n)
	go func() { _ = server.Serve(l) }() // ends with Stop
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(fault.StreamClient),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
	})
	return sandboxhostv1.NewCopyServiceClient(conn)
}

func data(b []byte) *sandboxhostv1.CopyOutResponse {
	return &sandboxhostv1.CopyOutResponse{Frame: &sandboxhostv1.CopyOutResponse_Data{Data: b}}
}

func done() *sandboxhostv1.CopyOutResponse {
	return &sandboxhostv1.CopyOutResponse{Frame: &sandboxhostv1.CopyOutResponse_Done{Done: &sandboxhostv1.CopyReport{Entries: 1, Skipped: 2}}}
}

// stream is a tar stream of files with their names.
func stream(t *testing.T, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 3}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "new"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A stream that is cut at any byte of the answer is a failure, and the file that was there stays; so is one of
// which nobody says that it is whole. (EXE-4)
func TestOutTo_EXE4_ACutStreamIsAFailure(t *testing.T) {
	whole := stream(t, "file")
	for cut := 0; cut <= len(whole); cut++ {
		for _, end := range []error{nil, fault.New(fault.Unavailable, "gone")} {
			if cut%64 != 0 && end == nil {
				continue // an end that looks well, at each eighth of a block
			}
			c := client(t, node{out: func(st grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]) error {
				return errors.Join(st.Send(data(whole[:cut])), end)
			}})
			path := filepath.Join(t.TempDir(), "kept")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := copying.OutTo(t.Context(), c, &sandboxhostv1.CopyOutRequest{Path: "/file"}, copying.Local{Path: path})
			if err == nil {
				t.Fatalf("cut at %d of %d, ended %v: a success", cut, len(whole), end)
			}
			if got, err := os.ReadFile(path); err != nil || cut < 515 && string(got) != "old" {
				t.Fatalf("cut at %d: the file is now %q, %v", cut, got, err)
			}
		}
		if cut > 520 {
			cut += 60 // the file is whole by then
		}
	}
}

// What is whole is put where it was wanted; whatever else a container sends is refused.
func TestOutTo_WritesNothingElse(t *testing.T) {
	dir := t.TempDir()
	send := func(names ...string) node {
		whole := stream(t, names...)
		return node{out: func(st grpc.ServerStreamingServer[sandboxhostv1.CopyOutResponse]) error {
			return errors.Join(st.Send(data(whole)), st.Send(done()))
		}}
	}
	to := copying.Local{Path: filepath.Join(dir, "as")}
	skipped, err := copying.OutTo(t.Context(), client(t, send("file")), &sandboxhostv1.CopyOutRequest{Path: "/etc/file"}, to)
	if got, readErr := os.ReadFile(to.Path); err != nil || readErr != nil || string(got) != "new" || skipped != 2 {
		t.Errorf("got %q, %v, %v, %d left out", got, err, readErr, skipped)
	}
	for _, name := range []string{"other", "../file", "/file", "file2", "file/../../x"} {
		_, err := copying.OutTo(t.Context(), client(t, send(name)), &sandboxhostv1.CopyOutRequest{Path: "/etc/file"}, copying.Local{Path: filepath.Join(dir, "bad")})
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) != 1 {
		t.Errorf("there is %v, %v", all, err)
	}
	_, err = copying.OutTo(t.Context(), client(t, send("file")), &sandboxhostv1.CopyOutRequest{Path: "/etc/file"}, copying.Local{Path: filepath.Join(dir, "missing/file")})
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("no such folder: got %v", err)
	}
}

// Input that breaks off is no whole copy.
func TestIn_InputThatBreaksOffIsNoEnd(t *testing.T) {
	n := node{in: make(chan error, 1)}
	broken := errors.New("broken off")
	_, err := copying.In(t.Context(), client(t, n), &sandboxhostv1.CopyInStart{}, io.MultiReader(bytes.NewReader(stream(t, "file")), failing{broken}))
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if err := <-n.in; err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the node heard %v, want the stream to be called off", err)
	}
	report, err := copying.In(t.Context(), client(t, n), &sandboxhostv1.CopyInStart{}, bytes.NewReader(stream(t, "file")))
	if err != nil || report.GetEntries() != 1 {
		t.Errorf("a whole one: got %v, %v", report, err)
	}
	if err := <-n.in; err != nil {
		t.Errorf("a whole one: the node heard %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
