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
	"time"
)

// issueNode writes an identity for the bed's node, by the CA whose files are given
// without their ending, as an operator would who adds a machine.
func (b *Bed) issueNode(ca, to string) {
	b.t.Helper()
	by, err := tls.LoadX509KeyPair(ca+".crt", ca+".key")
	b.must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	b.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "staddle.local", Path: "/node/" + b.opts.Name}},
		DNSNames: []string{b.opts.Name + ".node.staddle.local"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, by.Leaf, &key.PublicKey, by.PrivateKey)
	b.must(err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	b.must(err)
	b.must(os.WriteFile(to+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644))
	b.must(os.WriteFile(to+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}
