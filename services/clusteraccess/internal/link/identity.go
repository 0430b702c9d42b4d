package link

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"staddle.internal/kit/fault"
)

// Files are where the node's credentials lie. They may be put there, and be
// replaced, while the process runs: each connection reads them anew.
type Files struct {
	// CA, Certificate and Key are paths of PEM files.
	CA, Certificate, Key string
}

// identity is what the files say at one moment.
type identity struct {
	roots       *x509.CertPool
	certificate tls.Certificate
	trustDomain string
}

// load reads all three files. The error names what is missing or wrong.
func (f Files) load() (*identity, error) {
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read CA certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA certificate %s: it holds no certificate", f.CA)
	}
	cert, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read node certificate: %w", err)
	}
	domain, err := trustDomain(cert.Leaf)
	if err != nil {
		return nil, fmt.Errorf("read node certificate %s: %w", f.Certificate, err)
	}
	return &identity{roots: roots, certificate: cert, trustDomain: domain}, nil
}

func trustDomain(leaf *x509.Certificate) (string, error) {
	for _, uri := range leaf.URIs {
		if uri.Scheme == "spiffe" && strings.HasPrefix(uri.Path, "/node/") {
			return uri.Host, nil
		}
	}
	return "", errors.New(`it has no identity "spiffe://<trust domain>/node/<name>"`)
}

// verifyCoordinator decides whether a server is a coordinator of our cluster: its
// chain must end at our CA, and its identity must be that of a coordinator of our
// trust domain. A certificate without any identity must be made for host.
func (i *identity) verifyCoordinator(chain []*x509.Certificate, host string) error {
	if len(chain) == 0 {
		return fault.New(fault.Denied, "verify coordinator: it showed no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: i.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fault.New(fault.Denied, "verify coordinator: %w", err)
	}
	return i.verifyName(leaf, host)
}

func (i *identity) verifyName(leaf *x509.Certificate, host string) error {
	spiffe := false
	for _, uri := range leaf.URIs {
		spiffe = spiffe || uri.Scheme == "spiffe"
		if isCoordinator(uri, i.trustDomain) {
			return nil
		}
	}
	if spiffe {
		return fault.New(fault.Denied, "verify coordinator: %v is no coordinator of %s", leaf.URIs[0], i.trustDomain)
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return fault.New(fault.Denied, "verify coordinator: %w", err)
	}
	return nil
}

func isCoordinator(uri *url.URL, domain string) bool {
	id, ok := strings.CutPrefix(uri.Path, "/coordinator/")
	return uri.Scheme == "spiffe" && uri.Host == domain && ok && id != ""
}

// tlsConfig is mutual TLS 1.3 with what the files say at each handshake.
func (f Files) tlsConfig(address string) *tls.Config {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			i, err := f.load()
			if err != nil {
				return nil, err
			}
			return &i.certificate, nil
		},
		// The library's own check knows neither files that change nor SPIFFE
		// identities; verifyCoordinator is the check, on resumed connections too.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			i, err := f.load()
			if err != nil {
				return err
			}
			return i.verifyCoordinator(state.PeerCertificates, host)
		},
	}
}
