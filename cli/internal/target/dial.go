package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/rpc"

	"staddle.internal/cli/internal/exit"
)

// dialTimeout bounds the first contact. What does not answer a connect in that
// time is not there.
const dialTimeout = 5 * time.Second

// Socket connects to the unix socket of a process. It tries the socket first, so
// that the error tells apart what is absent, refuses, or is not allowed.
func Socket(ctx context.Context, process, path string) (*grpc.ClientConn, error) {
	if err := rpc.CheckSocketPath(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, unreachable(process, path, err)
	}
	if err := conn.Close(); err != nil {
		return nil, fault.New(fault.Unavailable, "reach %s at %s: %w", process, path, err)
	}
	return rpc.Dial(path, rpc.DialConfig{FailFast: true})
}

func unreachable(process, path string, err error) error {
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err
	}
	if sys, ok := errors.AsType[*os.SyscallError](cause); ok {
		cause = sys.Err
	}
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return Refused(process, path, fault.New(fault.Denied, "%w", cause))
	case errors.Is(err, syscall.ENOENT):
		return exit.Try(fault.New(fault.Unavailable, "reach %s at %s: there is no such socket", process, path),
			"staddle up, or name the right place with --root or --node-socket")
	default:
		return exit.Try(fault.New(fault.Unavailable, "reach %s at %s: %w", process, path, cause), "staddle status")
	}
}

// coordinator connects to the coordinator. The handshake is tried first: a wrong
// CA or an address that nobody serves is said at once and in its own words.
func (s *Settings) coordinator(ctx context.Context) (*grpc.ClientConn, error) {
	cfg, err := s.tls()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := handshake(ctx, s.Coordinator, cfg); err != nil {
		return nil, s.noCoordinator(err)
	}
	cfg.NextProtos = nil // grpc sets its own
	return rpc.Dial(s.Coordinator, rpc.DialConfig{TLS: cfg, FailFast: true})
}

// handshake shakes hands and hangs up. The other side looks at our certificate only after
// that, so its first word is waited for: settings, or why it does not take it.
func handshake(ctx context.Context, address string, cfg *tls.Config) error {
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }) // a closed one needs no deadline
	defer stop()
	_, err = conn.Read(make([]byte, 1))
	if closed := conn.Close(); err == nil && !errors.Is(closed, net.ErrClosed) {
		err = closed
	}
	return err
}

func (s *Settings) noCoordinator(err error) error {
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return exit.Try(fault.New(fault.Denied, "reach coordinator %s: its certificate is not to be trusted: %w", s.Coordinator, cert.Err),
			"name the CA file of that cluster with --ca; now it is %s", s.CA)
	}
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err
		if op.Op == "remote error" { // crypto/tls says so of what the other side gave as its reason
			return exit.Try(fault.New(fault.Denied, "reach coordinator %s: it does not take the certificate %s: %w", s.Coordinator, s.Cert, cause),
				"name an identity of that cluster with --cert and --key")
		}
		if sys, ok := errors.AsType[*os.SyscallError](cause); ok {
			cause = sys.Err
		}
	}
	return exit.Try(fault.New(fault.Unavailable, "reach coordinator %s: %w", s.Coordinator, cause),
		"staddle status, or name the coordinator with --coordinator, or talk to this node alone with --node-socket %s", s.NodeSocket)
}

func (s *Settings) tls() (*tls.Config, error) {
	ca, err := s.readIdentity(s.CA)
	if err != nil {
		return nil, err
	}
	certPEM, err := s.readIdentity(s.Cert)
	if err != nil {
		return nil, err
	}
	keyPEM, err := s.readIdentity(s.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fault.New(fault.Invalid, "read CA %s: no certificate in it", s.CA)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read identity %s: %w", s.Cert, err)
	}
	host, _, err := net.SplitHostPort(s.Coordinator)
	if err != nil {
		return nil, exit.BadUsage("coordinator %q: %v; write host:port", s.Coordinator, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair},
		ServerName: host, NextProtos: []string{"h2"},
	}, nil
}

func (s *Settings) readIdentity(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, exit.Try(fault.New(fault.Unavailable, "read identity %s: the file does not exist", path),
			"staddle up, or --root, or --node-socket %s for this node alone", s.NodeSocket)
	case errors.Is(err, os.ErrPermission):
		return nil, exit.Try(fault.New(fault.Denied, "read identity %s: permission denied", path),
			`run it with sudo, or once "staddle up", which keeps a copy of the identity for you`)
	case err != nil:
		return nil, fault.New(fault.Invalid, "read identity: %w", err)
	}
	return data, nil
}
