package coordinator_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/rpc"

	"staddle.internal/services/coordinator"
)

// roleVariable turns the test binary into the coordinator, so that the tests
// speak to a process of its own, over its real listener.
const roleVariable = "COORDINATOR_TEST_PROCESS"

const limit = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(coordinator.Main())
	}
	os.Exit(m.Run())
}

// rig is one coordinator with a folder of its own.
type rig struct {
	t       *testing.T
	root    string
	address string
	cmd     *exec.Cmd
	exited  chan error
	log     *output
}

// output keeps what the process writes, for the report of a failure.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// newRig writes the configuration and starts the process.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := prepare(t, "")
	r.start()
	return r
}

// prepare writes the configuration, with more lines at its end.
func prepare(t *testing.T, more string) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "co")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, root: root, address: l.Addr().String(), log: &output{}}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(r.log)
		}
	})
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("version: 1\nlisten_address: %s\nbootstrap: {node: n1, nodes: [n2]}\n%s", r.address, more)
	if err := os.WriteFile(filepath.Join(root, "etc", "coordinator.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs the process and waits for its listener.
func (r *rig) start() {
	r.t.Helper()
	r.spawn()
	r.await()
}

// spawn runs the process.
func (r *rig) spawn() {
	r.t.Helper()
	r.cmd = exec.Command(os.Args[0], "--root", r.root)
	r.cmd.Env = append(os.Environ(), roleVariable+"=1")
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.exited = make(chan error, 1)
	cmd, exited := r.cmd, r.exited
	go func() { exited <- cmd.Wait() }() // ends with the process, which the cleanup kills
}

// await waits until the API can be connected to.
func (r *rig) await() {
	r.t.Helper()
	end := time.Now().Add(limit)
	for {
		conn, err := net.DialTimeout("tcp", r.address, time.Second)
		if err == nil {
			if err := conn.Close(); err != nil {
				r.t.Fatal(err)
			}
			return
		}
		select {
		case exit := <-r.exited:
			r.exited <- exit
			r.t.Fatalf("coordinator ended: %v", exit)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			r.t.Fatalf("coordinator does not listen after %s: %v", limit, err)
		}
	}
}

// kill ends the process at once.
func (r *rig) kill() {
	if r.cmd == nil || r.cmd.Process == nil {
		return
	}
	if err := r.cmd.Process.Kill(); err == nil {
		<-r.exited
	}
	r.cmd = nil
}

// stop asks the process to end and returns how it did.
func (r *rig) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := <-r.exited
	r.cmd = nil
	return err
}

// tls is the configuration of a client with one of the certificates.
func (r *rig) tls(file string) *tls.Config {
	r.t.Helper()
	dir := filepath.Join(r.root, "etc", "pki")
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		r.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	cfg := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
	if file != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, file+".crt"), filepath.Join(dir, file+".key"))
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// client is one caller.
type client struct {
	coordinatorv1.ResourceServiceClient
	coordinatorv1.SessionServiceClient
	conn    *grpc.ClientConn
	machine string // from which it says that it calls
}

func (r *rig) dial(cfg *tls.Config) client {
	r.t.Helper()
	conn, err := rpc.Dial(r.address, rpc.DialConfig{TLS: cfg})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return client{coordinatorv1.NewResourceServiceClient(conn), coordinatorv1.NewSessionServiceClient(conn), conn, ""}
}

func (r *rig) operator() client { return r.dial(r.tls("operator")) }
func (r *rig) node1() client    { return r.dial(r.tls("node")).on("machine-n1") }
func (r *rig) node2() client    { return r.dial(r.tls("nodes/n2/node")).on("machine-n2") }

// on is the client as it calls from a machine.
func (c client) on(machine string) client {
	c.machine = machine
	return c
}

// eventually waits until ok, and prints the last value if it never is.
func eventually[T any](t *testing.T, what string, ask func() T, ok func(T) bool) T {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		v := ask()
		if ok(v) {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not after %s, last value %+v", what, limit, v)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (c client) create(t *testing.T, r *resourcev1.Resource) *resourcev1.Resource {
	t.Helper()
	resp, err := c.CreateResource(t.Context(), &coordinatorv1.CreateResourceRequest{Resource: r})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetResource()
}

func (c client) get(t *testing.T, kind resourcev1.Kind, name string) *resourcev1.Resource {
	t.Helper()
	resp, err := c.GetResource(t.Context(), &coordinatorv1.GetResourceRequest{Kind: kind, Which: &coordinatorv1.GetResourceRequest_Name{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetResource()
}

func (c client) exists(t *testing.T, kind resourcev1.Kind, name string) error {
	t.Helper()
	_, err := c.GetResource(t.Context(), &coordinatorv1.GetResourceRequest{Kind: kind, Which: &coordinatorv1.GetResourceRequest_Name{Name: name}})
	return err
}

// runToEnd runs the process until it ends by itself.
func (r *rig) runToEnd() (code int, text string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), os.Args[0], "--root", r.root)
	cmd.Env = append(os.Environ(), roleVariable+"=1")
	raw, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(raw)
}
