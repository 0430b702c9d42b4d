package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	"staddle.internal/kit/logging"
)

// pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey // nil for a CA whose key is kept elsewhere
}

// leafSpec says what a certificate must say.
type leafSpec struct {
	file  string
	uri   *url.URL
	names []string
	usage []x509.ExtKeyUsage
	owner int
}

// ca reads the CA, or makes it where there is none. A CA without key is fine as
// long as nothing has to be issued.
func (a *Authority) ca(now time.Time) (pair, error) {
	certFile, keyFile := a.path("ca", ".crt"), a.path("ca", ".key")
	cert, certErr := readCertificate(certFile)
	key, keyErr := readKey(keyFile)
	switch {
	case certErr == nil && keyErr == nil:
		if !key.PublicKey.Equal(cert.PublicKey) {
			return pair{}, fmt.Errorf("read CA: %s does not belong to %s: put the right one back", keyFile, certFile)
		}
		return pair{cert, key}, checkCA(cert, certFile, now)
	case certErr == nil && errors.Is(keyErr, os.ErrNotExist):
		return pair{cert, nil}, checkCA(cert, certFile, now)
	case !errors.Is(certErr, os.ErrNotExist):
		return pair{}, errors.Join(certErr, ignoreAbsence(keyErr))
	case keyErr != nil && !errors.Is(keyErr, os.ErrNotExist):
		return pair{}, keyErr
	}
	if key == nil { // neither is there; a key alone is what a start leaves that was cut off
		var err error
		if key, err = makeKey(keyFile, 0); err != nil {
			return pair{}, err
		}
	}
	return a.makeCA(key, certFile, now)
}

func checkCA(cert *x509.Certificate, file string, now time.Time) error {
	switch {
	case !cert.IsCA:
		return fmt.Errorf("read CA: %s is no CA certificate", file)
	case now.After(cert.NotAfter):
		return fmt.Errorf("read CA: %s ended on %s", file, cert.NotAfter.Format(time.DateOnly))
	}
	return nil
}

func (a *Authority) makeCA(key *ecdsa.PrivateKey, file string, now time.Time) (pair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Staddle CA of " + a.cfg.TrustDomain},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: a.cfg.TrustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(template, template, &key.PublicKey, key, file, 0)
	if err != nil {
		return pair{}, err
	}
	a.deps.Log.Info("CA made", logging.Path(file))
	return pair{cert, key}, nil
}

// leaf reads a certificate, and issues it where it is missing, ends soon or says
// too little. The key stays; one that was given to another user cannot be read by
// us any more, and its certificate alone says what it is.
func (a *Authority) leaf(ca pair, spec leafSpec, now time.Time) (pair, error) {
	certFile, keyFile := a.path(spec.file, ".crt"), a.path(spec.file, ".key")
	cert, certErr := readCertificate(certFile)
	key, keyErr := readKey(keyFile)
	switch {
	case certErr == nil && keyErr == nil:
		if !key.PublicKey.Equal(cert.PublicKey) {
			return pair{}, fmt.Errorf("read certificate: %s does not belong to %s: put the right one back", keyFile, certFile)
		}
		stays, err := usable(cert, ca, spec, certFile, now)
		if err != nil || stays {
			return pair{cert, key}, err
		}
	case certErr == nil && errors.Is(keyErr, os.ErrPermission) && spec.owner != os.Geteuid():
		return a.renew(cert, ca, spec, now)
	case certErr == nil && errors.Is(keyErr, os.ErrNotExist):
		return pair{}, fmt.Errorf("read certificate: %s is there and its key %s is not: put it back, or remove the certificate too", certFile, keyFile)
	case certErr != nil && !errors.Is(certErr, os.ErrNotExist):
		return pair{}, certErr
	case keyErr != nil && !errors.Is(keyErr, os.ErrNotExist):
		return pair{}, keyErr
	}
	if ca.key == nil {
		return pair{}, fmt.Errorf("issue %s: the key of the CA, %s, is not there", certFile, a.path("ca", ".key"))
	}
	if key == nil {
		var err error
		if key, err = makeKey(keyFile, spec.owner); err != nil {
			return pair{}, err
		}
	}
	cert, err := sign(template(spec, now), ca.cert, &key.PublicKey, ca.key, certFile, spec.owner)
	if err != nil {
		return pair{}, err
	}
	a.deps.Log.Info("certificate issued", logging.Path(certFile))
	return pair{cert, key}, nil
}

// renew issues a certificate again, for the same key, where it does not serve on.
func (a *Authority) renew(cert *x509.Certificate, ca pair, spec leafSpec, now time.Time) (pair, error) {
	file := a.path(spec.file, ".crt")
	stays, err := usable(cert, ca, spec, file, now)
	if err != nil || stays {
		return pair{cert: cert}, err
	}
	public, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok || ca.key == nil {
		return pair{}, fmt.Errorf("issue %s: it cannot be renewed here: remove it and its key to get another", file)
	}
	if cert, err = sign(template(spec, now), ca.cert, public, ca.key, file, spec.owner); err != nil {
		return pair{}, err
	}
	a.deps.Log.Info("certificate issued", logging.Path(file))
	return pair{cert: cert}, nil
}

// usable reports whether a certificate serves on as it is. One of another CA or
// for another identity was put there by somebody: that is an error.
func usable(cert *x509.Certificate, ca pair, spec leafSpec, file string, now time.Time) (bool, error) {
	if err := cert.CheckSignatureFrom(ca.cert); err != nil {
		return false, fmt.Errorf("read certificate: %s is not of this cluster's CA: %w", file, err)
	}
	if len(cert.URIs) != 1 || cert.URIs[0].String() != spec.uri.String() {
		return false, fmt.Errorf("read certificate: %s is for %v, not for %s: remove it and its key to get another", file, cert.URIs, spec.uri)
	}
	unnamed := slices.ContainsFunc(spec.names, func(name string) bool { return cert.VerifyHostname(name) != nil })
	return !unnamed && now.Before(cert.NotAfter.Add(-leafLife/3)), nil
}

func template(spec leafSpec, now time.Time) *x509.Certificate {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: spec.uri.Path[1:]},
		URIs:        []*url.URL{spec.uri},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: spec.usage,
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(spec.names))) {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	return t
}

func sign(t, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey, file string, owner int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", file, err)
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1))
	raw, err := x509.CreateCertificate(rand.Reader, t, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", file, err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", file, err)
	}
	return cert, writePEM(file, "CERTIFICATE", raw, 0o644, owner)
}

func makeKey(file string, owner int) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", file, err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", file, err)
	}
	return key, writePEM(file, "PRIVATE KEY", raw, 0o600, owner)
}

func ignoreAbsence(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
