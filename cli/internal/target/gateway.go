package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/cli/internal/exit"
)

// Gateway is the door of one node for other machines.
type Gateway struct {
	conn     *grpc.ClientConn
	presence presencev1.PresenceServiceClient
	name     string
}

// GatewayAddress asks the coordinator where the gateway of a node is, and returns the
// name of the node with it: ref may be its uid.
func (s *Settings) GatewayAddress(ctx context.Context, ref string) (name, address string, err error) {
	c, err := s.Cluster(ctx)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r, err := c.Lookup(ctx, resourcev1.Kind_KIND_NODE, ref)
	if err != nil {
		return "", "", err
	}
	name, address = r.GetMeta().GetName(), r.GetNode().GetStatus().GetGatewayAddress()
	if address == "" {
		return "", "", exit.Try(fault.New(fault.Unavailable, "reach node %s: it has told of no gateway", name),
			"write a listen_address in its node.yaml, or name the gateway with --address")
	}
	return name, address, nil
}

// Gateway connects to the gateway of a node with the identity of the operator. Who
// answers must prove to be that node of the same cluster.
func (s *Settings) Gateway(ctx context.Context, name, address string) (*Gateway, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, exit.BadUsage("gateway %q: %v; write host:port", address, err)
	}
	cfg, err := s.tls()
	if err != nil {
		return nil, err
	}
	if err := expectNode(cfg, name); err != nil {
		return nil, fmt.Errorf("read identity %s: %w", s.Cert, err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := handshake(ctx, address, cfg); err != nil {
		return nil, s.noGateway(name, address, err)
	}
	cfg.NextProtos = nil // grpc sets its own
	conn, err := rpc.Dial(address, rpc.DialConfig{TLS: cfg, FailFast: true})
	if err != nil {
		return nil, err
	}
	return &Gateway{conn, presencev1.NewPresenceServiceClient(conn), name}, nil
}

// expectNode makes the identity in the server's certificate count, and not the host
// name: a node is itself wherever it is.
func expectNode(cfg *tls.Config, name string) error {
	own, err := x509.ParseCertificate(cfg.Certificates[0].Certificate[0])
	if err != nil {
		return err
	}
	if len(own.URIs) != 1 || own.URIs[0].Scheme != "spiffe" {
		return fault.New(fault.Invalid, "it has no SPIFFE identity")
	}
	want := "spiffe://" + own.URIs[0].Host + "/node/" + name
	cfg.InsecureSkipVerify = true // the library's own check knows host names only
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		leaf := state.PeerCertificates[0]
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: cfg.RootCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return &wrongNode{fmt.Errorf("its certificate is not to be trusted: %w", err)}
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
			return &wrongNode{fmt.Errorf("it is %v, not %s", leaf.URIs, want)}
		}
		return nil
	}
	return nil
}

// wrongNode is why who answers is not the node that was asked for.
type wrongNode struct{ error }

func (w *wrongNode) Unwrap() error { return w.error }

func (s *Settings) noGateway(name, address string, err error) error {
	if wrong, ok := errors.AsType[*wrongNode](err); ok {
		return exit.Try(fault.New(fault.Denied, "reach node %s at %s: %w", name, address, wrong),
			"check the listen_address and advertise_address in its node.yaml; the CA is %s", s.CA)
	}
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err
		if op.Op == "remote error" {
			return exit.Try(fault.New(fault.Denied, "reach node %s at %s: it does not take the certificate %s: %w", name, address, s.Cert, cause),
				"name an identity of that cluster with --cert and --key")
		}
		if sys, ok := errors.AsType[*os.SyscallError](cause); ok {
			cause = sys.Err
		}
	}
	return exit.Try(fault.New(fault.Unavailable, "reach node %s at %s: %w", name, address, cause),
		"check that the node runs, and the listen_address and advertise_address in its node.yaml: staddle get node %s", name)
}

// Close ends the connection.
func (g *Gateway) Close() error { return g.conn.Close() }

// Presence returns what the node says of itself.
func (g *Gateway) Presence(ctx context.Context) (*presencev1.Presence, error) {
	r, err := g.presence.GetPresence(ctx, &presencev1.GetPresenceRequest{})
	if err != nil {
		return nil, wrap(err, "ask node %s", g.name)
	}
	return r.GetPresence(), nil
}

// WatchPresence sends what the node says of itself, at once and after each change,
// until emit fails or the stream ends.
func (g *Gateway) WatchPresence(ctx context.Context, emit func(*presencev1.Presence) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	what := "watch node " + g.name
	stream, err := g.presence.WatchPresence(ctx, &presencev1.WatchPresenceRequest{})
	if err != nil {
		return wrap(err, "%s", what)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return ended(what, err)
		}
		if err := emit(msg.GetPresence()); err != nil {
			return err
		}
	}
}
