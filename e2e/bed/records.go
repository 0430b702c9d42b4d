package bed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"staddle.internal/kit/rpc"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
)

// Records is the coordinator's API, as the operator, over the bed's own network.
func (b *Bed) Records() coordinatorv1.ResourceServiceClient {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	const key = "api" // no process has this name
	if b.conns[key] == nil {
		conn, err := b.dialAPI("operator")
		b.must(err)
		b.conns[key] = conn
	}
	return coordinatorv1.NewResourceServiceClient(b.conns[key])
}

// dialAPI connects to the coordinator with the identity in <etc>/pki of that name.
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
		err = inNetwork(filepath.Join("/run/netns", b.NS), func() error {
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
