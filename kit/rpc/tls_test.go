package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// bufconnCreds makes an operator of whoever connects in memory.
type bufconnCreds struct {
	credentials.TransportCredentials
}

func (bufconnCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, localPeer{roles: roles(operator)}, nil
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{cert, key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) issue(t *testing.T, uris ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		must(t, err)
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestServer_RemoteRolesByCertificate(t *testing.T) {
	ca := newAuthority(t)
	server, err := NewServer(ServerConfig{
		Process: "coordinator", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(config.Users{}),
		AnonymousRemote: []string{full("Join")},
		TLS: &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t)}, ClientCAs: ca.pool(), ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
		},
	})
	must(t, err)
	server.GRPC().RegisterService(behaviour{unary: func(ctx context.Context, _, _ string) (string, error) {
		id := Caller(ctx)
		return fmt.Sprint(id.Role, " ", id.Name, " ", id.Remote, " ", id.UID), nil
	}}.desc(), nil)
	server.Status().SetReady()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	background(t, server.Member(l))

	alice, n1 := "spiffe://staddle.local/user/alice", "spiffe://staddle.local/node/n1"
	for _, tc := range []struct {
		name, method string
		certificate  []tls.Certificate
		want         string // "" means Denied
	}{
		{"user", "Read", []tls.Certificate{ca.issue(t, alice)}, "ROLE_OPERATOR " + alice + " true -1"},
		{"user", "RemoteOnly", []tls.Certificate{ca.issue(t, alice)}, ""},
		{"user", "Change", []tls.Certificate{ca.issue(t, alice)}, ""},
		{"node", "RemoteOnly", []tls.Certificate{ca.issue(t, n1)}, "ROLE_NODE " + n1 + " true -1"},
		{"node", "Read", []tls.Certificate{ca.issue(t, n1)}, ""},
		{"two identities", "Read", []tls.Certificate{ca.issue(t, alice, n1)}, ""},
		{"no identity", "Read", []tls.Certificate{ca.issue(t)}, ""},
		{"nobody", "Read", nil, ""},
		{"nobody", "Join", nil, "ROLE_UNSPECIFIED anonymous true -1"},
	} {
		conn := dial(t, l.Addr().String(), DialConfig{TLS: &tls.Config{RootCAs: ca.pool(), Certificates: tc.certificate, MinVersion: tls.VersionTLS13}})
		got, err := call(t.Context(), conn, tc.method, "")
		if tc.want == "" {
			if fault.KindOf(err) != fault.Denied {
				t.Errorf("%s on %s: %q, %v, want Denied", tc.name, tc.method, got, err)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%s on %s: %q, %v, want %q", tc.name, tc.method, got, err, tc.want)
		}
	}

	forged := newAuthority(t).issue(t, alice)
	conn := dial(t, l.Addr().String(), DialConfig{FailFast: true, TLS: &tls.Config{RootCAs: ca.pool(), Certificates: []tls.Certificate{forged}, MinVersion: tls.VersionTLS13}})
	if got, err := call(t.Context(), conn, "Read", ""); err == nil {
		t.Errorf("forged certificate: admitted as %q", got)
	}
}

func TestServer_WithoutTLSRefusesTCP(t *testing.T) {
	server, err := NewServer(ServerConfig{Process: "storage", Log: slog.New(slog.DiscardHandler), Peers: NewPeers(config.Users{})})
	must(t, err)
	server.GRPC().RegisterService(behaviour{}.desc(), nil)
	server.Status().SetReady()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	background(t, server.Member(l))
	conn := dial(t, l.Addr().String(), DialConfig{FailFast: true, TLS: &tls.Config{InsecureSkipVerify: true}})
	if got, err := call(t.Context(), conn, "Read", ""); err == nil {
		t.Errorf("admitted: %q", got)
	}
}
