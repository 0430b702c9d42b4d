package bed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// IssueOperator writes the identity of one more operator to <etc>/pki/<name>, by the CA
// of the bed's coordinator, as whoever has its key may.
func (b *Bed) IssueOperator(name string) {
	b.t.Helper()
	pki := filepath.Join(b.Paths.Etc(), "pki")
	by, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	b.must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	b.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "staddle.local", Path: "/user/" + name}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, by.Leaf, &key.PublicKey, by.PrivateKey)
	b.must(err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	b.must(err)
	to := filepath.Join(pki, name)
	b.must(os.WriteFile(to+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644))
	b.must(os.WriteFile(to+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}
