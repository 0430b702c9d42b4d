package bed

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/rpc"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
)

// Records is the coordinator's API, as the operator, over the bed's own network.
func (b *Bed) Records() coordinatorv1.ResourceServiceClient {
	b.t.Helper()
	return coordinatorv1.NewResourceServiceClient(b.ConnAPI("operator"))
}

// ConnAPI is a connection to the coordinator with the identity in <etc>/pki of that
// name.
func (b *Bed) ConnAPI(identity string) *grpc.ClientConn {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	key := "coordinator as " + identity
	if b.conns[key] == nil {
		conn, err := b.dialAPI(identity)
		b.must(err)
		b.conns[key] = conn
	}
	return b.conns[key]
}

func (b *Bed) dialAPI(identity string) (*grpc.ClientConn, error) {
	address := "127.0.0.1:8443"
	if b.opts.Lan || b.opts.Cluster != nil {
		address = lanAPI
	}
	pki := filepath.Join(b.Paths.Etc(), "pki")
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.crt holds no certificate")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, identity+".crt"), filepath.Join(pki, identity+".key"))
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, address string) (conn net.Conn, err error) {
		err = InNetwork(filepath.Join("/run/netns", b.NS), func() error {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
	return rpc.Dial(address, rpc.DialConfig{
		TLS:     &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: host},
		Options: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
}

// CLIAs is CLI as another user, who is in no group but that of the same number.
func (b *Bed) CLIAs(uid int, args ...string) Result {
	b.t.Helper()
	return b.ProgramAs(uid, "staddle", append([]string{"--root", b.Paths.Root}, args...)...)
}

// ProgramAs is Program as another user, who is in no group but that of the same
// number; at most a minute.
func (b *Bed) ProgramAs(uid int, name string, args ...string) Result {
	b.t.Helper()
	id := strconv.Itoa(uid)
	return b.finish(b.inside("setpriv", append([]string{
		"--reuid", id, "--regid", id, "--clear-groups", "--", filepath.Join(b.bin, name),
	}, args...)...), time.Minute)
}

// Logs is what every component has said so far, by its name.
func (b *Bed) Logs() map[string]string {
	b.t.Helper()
	paths, err := filepath.Glob(filepath.Join(b.Paths.Var("supervisor"), "logs", "*.log"))
	b.must(err)
	all := map[string]string{}
	for _, path := range append(paths, filepath.Join(b.Paths.Root, "supervisor.log")) {
		raw, err := os.ReadFile(path)
		b.must(err)
		all[strings.TrimSuffix(filepath.Base(path), ".log")] = string(raw)
	}
	return all
}

// ListenAt listens on an address of the bed's own network, or at a path. Who serves
// there closes it.
func (b *Bed) ListenAt(network, address string) net.Listener {
	b.t.Helper()
	var l net.Listener
	b.must(InNetwork(filepath.Join("/run/netns", b.NS), func() (err error) {
		l, err = net.Listen(network, address)
		return err
	}))
	return l
}

// Connects connects to an address in the bed's network, or to a socket, and hangs
// up. The error says why it could not.
func (b *Bed) Connects(network, address string) error {
	return InNetwork(filepath.Join("/run/netns", b.NS), func() error {
		conn, err := net.DialTimeout(network, address, 10*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// DialAt connects to an address of the bed's own network. The caller closes it.
func (b *Bed) DialAt(network, address string) net.Conn {
	b.t.Helper()
	var conn net.Conn
	b.must(InNetwork(filepath.Join("/run/netns", b.NS), func() (err error) {
		conn, err = net.Dial(network, address)
		return err
	}))
	return conn
}

// Program runs one of the installed programs to its end, at most 30 seconds.
func (b *Bed) Program(name string, args ...string) Result {
	b.t.Helper()
	return b.finish(b.inside(filepath.Join(b.bin, name), args...), 30*time.Second)
}

// finish runs a command to its end or its limit.
func (b *Bed) finish(cmd *exec.Cmd, limit time.Duration) Result {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	b.must(cmd.Start())
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		b.t.Fatalf("%v: %v", cmd.Args, err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}
