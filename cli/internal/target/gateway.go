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

// GatewayOf returns where the gateway of a node is, as its record says.
func GatewayOf(r *resourcev1.Resource) (address string, err error) {
	address = r.GetNode().GetStatus().GetGatewayAddress()
	if address == "" {
		return "", exit.Try(fault.New(fault.Unavailable, "reach node %s: it has told of no gateway", r.GetMeta().GetName()),
			"write a listen_address in its node.yaml, or name the gateway with --address")
	}
	return address, nil
}

// Gateway connects to the presence of a node through its gateway, with the identity of
// the operator. Who answers must prove to be that node of the same cluster.
func (s *Settings) Gateway(ctx context.Context, name, address string) (*Presence, error) {
	conn, err := s.gateway(ctx, name, address)
	if err != nil {
		return nil, err
	}
	return &Presence{conn, presencev1.NewPresenceServiceClient(conn), "node " + name, nil}, nil
}

// gateway connects to the gateway of a node.
func (s *Settings) gateway(ctx context.Context, name, address string) (*grpc.ClientConn, error) {
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
	return rpc.Dial(address, rpc.DialConfig{TLS: cfg, FailFast: true})
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
