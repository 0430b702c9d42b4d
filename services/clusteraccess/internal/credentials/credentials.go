// Package credentials owns the files by which this node is known: its certificate,
// its key, and the CA of its cluster.
//
// The files may be put there, and be replaced, while the process runs: whoever
// needs them reads them anew for each connection. It must never write one, nor keep
// what it read. In the trail it is read by both ends of the node's TLS: the link to
// the coordinator, and the gateway.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Files are where the node's credentials lie.
type Files struct {
	// CA, Certificate and Key are paths of PEM files.
	CA, Certificate, Key string
}

// Identity is what the files say at one moment.
type Identity struct {
	// Roots are the CAs of the cluster.
	Roots *x509.CertPool
	// Certificate is the node's own, with its key.
	Certificate tls.Certificate
	// TrustDomain is that of the node's own identity.
	TrustDomain string
}

// Load reads all three files. The error names what is missing or wrong.
func (f Files) Load() (*Identity, error) {
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
	return &Identity{Roots: roots, Certificate: cert, TrustDomain: domain}, nil
}

func trustDomain(leaf *x509.Certificate) (string, error) {
	for _, uri := range leaf.URIs {
		if uri.Scheme == "spiffe" && strings.HasPrefix(uri.Path, "/node/") {
			return uri.Host, nil
		}
	}
	return "", errors.New(`it has no identity "spiffe://<trust domain>/node/<name>"`)
}
