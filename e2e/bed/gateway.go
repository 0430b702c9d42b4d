package bed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"staddle.internal/kit/rpc"
)

// NodeGateway is where the gateway of a node listens that was joined to a cluster and
// takes calls on all its addresses.
const NodeGateway = lanNode + ":8444"

// Gateway is a connection from this machine's network to the gateway of the node at
// an address. The caller shows the identity that this machine has as pki/<name>, or
// none where that is empty; the gateway has to prove that it is the node.
func (b *Bed) Gateway(address, name string) *grpc.ClientConn {
	b.t.Helper()
	pki := filepath.Join(b.Paths.Etc(), "pki")
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	b.must(err)
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: NodeName + ".node.staddle.local"}
	cfg.RootCAs.AppendCertsFromPEM(ca)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(pki, name+".crt"), filepath.Join(pki, name+".key"))
		b.must(err)
		cfg.Certificates = []tls.Certificate{pair}
	}
	dial := func(ctx context.Context, address string) (conn net.Conn, err error) {
		err = InNetwork(filepath.Join("/run/netns", b.NS), func() error {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
	conn, err := rpc.Dial(address, rpc.DialConfig{FailFast: true, TLS: cfg, Options: []grpc.DialOption{grpc.WithContextDialer(dial)}})
	b.must(err)
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
