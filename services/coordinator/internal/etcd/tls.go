package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// clientTLS reads the files that speak to an etcd cluster; nil without any.
func clientTLS(cfg Config) (*tls.Config, error) {
	if cfg.CA == "" && cfg.Certificate == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("read CA of etcd: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA of etcd: %s holds no certificate", cfg.CA)
		}
	}
	if cfg.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(cfg.Certificate, cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("read certificate for etcd: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
