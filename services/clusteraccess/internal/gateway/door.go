package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	nodecredentials "staddle.internal/services/clusteraccess/internal/credentials"
)

// visitor is who connected: what a connection has for a name tag.
type visitor struct {
	credentials.TLSInfo
	// name is the identity that the certificate proves.
	name string
	// until is when the certificate ends.
	until time.Time
	// refusal is why none of its calls is passed on.
	refusal error
}

// visitorOf reads a chain that the handshake has verified. Whoever is of this
// cluster and may not call is let in, to be told why with each call.
func visitorOf(chains [][]*x509.Certificate, domain string) visitor {
	if len(chains) == 0 {
		return visitor{name: "nobody", refusal: fault.New(fault.Denied, "a certificate of this cluster is needed")}
	}
	leaf := chains[0][0]
	role, name, err := rpc.RemoteRole(leaf)
	if err != nil {
		return visitor{name: fmt.Sprintf("%.80q", leaf.Subject.CommonName), until: leaf.NotAfter, refusal: err}
	}
	v := visitor{name: name, until: lastsUntil(chains)}
	switch {
	case leaf.URIs[0].Host != domain:
		v.refusal = fault.New(fault.Denied, "%s is not of the trust domain %s", name, domain)
	case role != optionsv1.Role_ROLE_OPERATOR && role != optionsv1.Role_ROLE_COORDINATOR:
		v.refusal = fault.New(fault.Denied, "%s is neither an operator nor a coordinator", name)
	}
	return v
}

// lastsUntil is when the last of the chains is broken by the end of a certificate.
func lastsUntil(chains [][]*x509.Certificate) time.Time {
	var last time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// check decides whether a call of this visitor is looked at.
func (v visitor) check(now time.Time) error {
	if v.refusal == nil && !now.Before(v.until) {
		return errExpired
	}
	return v.refusal
}

// errExpired ends the calls of a certificate that ended while they were open.
var errExpired = fault.New(fault.Denied, "the certificate has expired: connect again with one that is valid")

// caller is the visitor whose call this is.
func caller(ctx context.Context) visitor {
	if p, ok := peer.FromContext(ctx); ok {
		if v, ok := p.AuthInfo.(visitor); ok {
			return v
		}
	}
	return visitorOf(nil, "")
}

// door shakes hands with who connects. It reads the node's credentials for each
// handshake, and bounds how many there are at a time.
type door struct {
	files   nodecredentials.Files
	log     *slog.Logger
	shaking atomic.Int64 // handshakes under way

	mu   sync.Mutex // guards said
	said string     // why there were no credentials, as told last
}

// ServerHandshake is mutual TLS 1.3 with certificates of this cluster.
func (d *door) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	defer d.shaking.Add(-1)
	if d.shaking.Add(1) > maxHandshakes {
		return nil, nil, errors.Join(fmt.Errorf("shake hands with %s: there are too many at the door", conn.RemoteAddr()), conn.Close())
	}
	self, err := d.files.Load()
	d.tell(err)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	secure, info, err := credentials.NewTLS(serverTLS(self)).ServerHandshake(conn)
	if err != nil {
		d.log.Debug("connection refused", logging.Peer(conn.RemoteAddr().String()), logging.Err(err))
		return nil, nil, err
	}
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("shake hands with %s: %T is not from TLS", conn.RemoteAddr(), info), conn.Close())
	}
	v := visitorOf(tlsInfo.State.VerifiedChains, self.TrustDomain)
	v.TLSInfo = tlsInfo
	return secure, v, nil
}

// tell says once per cause that nobody can connect because this node has no identity.
func (d *door) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	d.mu.Lock()
	news := text != d.said
	d.said = text
	d.mu.Unlock()
	if news && err != nil {
		d.log.Warn("gateway without identity", logging.Err(err))
	}
}

func serverTLS(self *nodecredentials.Identity) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{self.Certificate},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              self.Roots,
		SessionTicketsDisabled: true, // each connection is checked anew
	}
}

// ClientHandshake is not for a server.
func (d *door) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("connect through the gateway's door: it only lets in")
}

// Info describes the protocol.
func (d *door) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns the same door: what it counts belongs to all.
func (d *door) Clone() credentials.TransportCredentials { return d }

// OverrideServerName is part of the interface; a server has none.
func (d *door) OverrideServerName(string) error { return nil }
