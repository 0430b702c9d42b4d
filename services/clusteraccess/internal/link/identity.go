package link

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"

	"staddle.internal/kit/fault"

	"staddle.internal/services/clusteraccess/internal/credentials"
)

// verifyCoordinator decides whether a server is a coordinator of our cluster: its
// chain must end at our CA, and its identity must be that of a coordinator of our
// trust domain. A certificate without any identity must be made for host.
func verifyCoordinator(self *credentials.Identity, chain []*x509.Certificate, host string) error {
	if len(chain) == 0 {
		return fault.New(fault.Denied, "verify coordinator: it showed no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: self.Roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fault.New(fault.Denied, "verify coordinator: %w", err)
	}
	return verifyName(self, leaf, host)
}

func verifyName(self *credentials.Identity, leaf *x509.Certificate, host string) error {
	spiffe := false
	for _, uri := range leaf.URIs {
		spiffe = spiffe || uri.Scheme == "spiffe"
		if isCoordinator(uri, self.TrustDomain) {
			return nil
		}
	}
	if spiffe {
		return fault.New(fault.Denied, "verify coordinator: %v is no coordinator of %s", leaf.URIs[0], self.TrustDomain)
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
func tlsConfig(files credentials.Files, address string) *tls.Config {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			self, err := files.Load()
			if err != nil {
				return nil, err
			}
			return &self.Certificate, nil
		},
		// The library's own check knows neither files that change nor SPIFFE
		// identities; verifyCoordinator is the check, on resumed connections too.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			self, err := files.Load()
			if err != nil {
				return err
			}
			return verifyCoordinator(self, state.PeerCertificates, host)
		},
	}
}
