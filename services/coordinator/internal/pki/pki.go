// Package pki owns the cluster's identities on this machine: the CA, the
// coordinator's own certificate, and those that the first start writes for one
// node and one operator.
//
// A key is made once. It is never replaced silently: one that is there and cannot
// be used is an error that names the file, because a new one in its place would
// lock everybody out. Certificates are renewed for the same key well before they
// end. It must never be asked who may do what. In the trail it stands before the
// listener: without it nobody is let in.
package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"staddle.internal/kit/logging"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// backdate covers clocks that differ.
	backdate = 5 * time.Minute
	// lookAgain is how often certificates are looked at while running.
	lookAgain = 6 * time.Hour
)

// Config says which identities there are.
type Config struct {
	// Dir holds all files.
	Dir string
	// TrustDomain is the domain of all identities.
	TrustDomain string
	// Name of this coordinator, the last part of its identity.
	Name string
	// ServerNames are host names and addresses in its certificate.
	ServerNames []string
	// Refused are identities, as URIs, that are let in no more although their
	// certificates are valid.
	Refused []string
	// Identities are further ones to write.
	Identities []Identity
}

// Identity is one certificate for somebody else.
type Identity struct {
	// Kind is "node" or "user".
	Kind string
	// Name is the last part of the identity.
	Name string
	// File is the path of certificate and key below Dir, without ending.
	File string
	// Owner is the numeric user that the files belong to.
	Owner int
}

// Deps is what the authority needs.
type Deps struct {
	Log *slog.Logger
}

// Authority keeps the identities.
type Authority struct {
	cfg     Config
	deps    Deps
	current atomic.Pointer[issued]
}

// issued is what the server shows and trusts.
type issued struct {
	certificate tls.Certificate
	trusted     *x509.CertPool
}

// New returns an authority that has looked at no file yet.
func New(cfg Config, deps Deps) *Authority { return &Authority{cfg: cfg, deps: deps} }

// Run makes what is missing, calls ready, and renews until ctx ends.
func (a *Authority) Run(ctx context.Context, ready func()) error {
	if err := a.Ensure(time.Now()); err != nil {
		return err
	}
	ready()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := a.Ensure(time.Now()); err != nil {
				a.deps.Log.Error("renewal failed", logging.Err(err)) // the old ones serve on
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ensure makes every identity that is missing and renews those that end soon.
// Safe to repeat.
func (a *Authority) Ensure(now time.Time) error {
	ca, err := a.ca(now)
	if err != nil {
		return err
	}
	own, err := a.leaf(ca, a.ownLeaf(), now)
	if err != nil {
		return err
	}
	if own.key == nil {
		return fmt.Errorf("read key: %s belongs to another user: give it to the one that runs the coordinator", a.path("coordinator", ".key"))
	}
	for _, who := range a.cfg.Identities {
		if _, err := a.leaf(ca, a.foreignLeaf(who), now); err != nil {
			return err
		}
		if err := a.caBeside(who, ca.cert); err != nil {
			return err
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	a.current.Store(&issued{tls.Certificate{Certificate: [][]byte{own.cert.Raw}, PrivateKey: own.key, Leaf: own.cert}, pool})
	return nil
}

// Server is the configuration of the listener: TLS 1.3, and a certificate of this
// cluster from everybody. A renewal reaches it with the next handshake.
func (a *Authority) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := a.current.Load()
			return &tls.Config{
				MinVersion:             tls.VersionTLS13,
				ClientAuth:             tls.RequireAndVerifyClientCert,
				NextProtos:             []string{"h2"},
				ClientCAs:              now.trusted,
				Certificates:           []tls.Certificate{now.certificate},
				SessionTicketsDisabled: true,
				VerifyConnection:       a.admit,
			}, nil
		},
	}
}

// admit refuses whoever is to be let in no more, after the chain was verified.
func (a *Authority) admit(state tls.ConnectionState) error {
	for _, uri := range state.PeerCertificates[0].URIs {
		if slices.Contains(a.cfg.Refused, uri.String()) {
			return fmt.Errorf("%s is refused", uri)
		}
	}
	return nil
}

// caBeside puts a copy of the CA's certificate beside an identity in a folder of its
// own: that folder is then all that is carried to where the identity is used.
func (a *Authority) caBeside(who Identity, ca *x509.Certificate) error {
	dir := filepath.Dir(a.path(who.File, ""))
	if dir == filepath.Clean(a.cfg.Dir) {
		return nil
	}
	file := filepath.Join(dir, "ca.crt")
	if there, err := readCertificate(file); err == nil && there.Equal(ca) {
		return nil
	}
	return writePEM(file, "CERTIFICATE", ca.Raw, 0o644, who.Owner)
}

func (a *Authority) ownLeaf() leafSpec {
	return leafSpec{
		file:  "coordinator",
		uri:   a.uri("coordinator", a.cfg.Name),
		names: a.cfg.ServerNames,
		usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func (a *Authority) foreignLeaf(who Identity) leafSpec {
	spec := leafSpec{
		file: who.File, uri: a.uri(who.Kind, who.Name), owner: who.Owner,
		usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if who.Kind == "node" {
		spec.usage = append(spec.usage, x509.ExtKeyUsageServerAuth)
		spec.names = a.serverNames(who.Name)
	}
	return spec
}

// serverNames is the host name by which clients that know no identities check the
// gateway of a node: one that is no host's, so that a node never passes for the
// coordinator of its machine. A trust domain that is no host name gives none.
func (a *Authority) serverNames(node string) []string {
	name := node + ".node." + a.cfg.TrustDomain
	if (&x509.Certificate{DNSNames: []string{name}}).VerifyHostname(name) != nil {
		return nil
	}
	return []string{name}
}

func (a *Authority) uri(kind, name string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: a.cfg.TrustDomain, Path: "/" + kind + "/" + name}
}

func (a *Authority) path(file, ending string) string { return filepath.Join(a.cfg.Dir, file+ending) }
