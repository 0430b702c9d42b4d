package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"staddle.internal/kit/wholefile"
)

// maxFile bounds what is read of a file that somebody may have put there.
const maxFile = 1 << 20

// readPEM returns the first block of a file. Absence is os.ErrNotExist; an empty
// or half-written file is an error that names it.
func readPEM(file, kind string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("read %s: it holds no %s: put the right file back", file, kind)
	}
	return block.Bytes, nil
}

func readCertificate(file string) (*x509.Certificate, error) {
	raw, err := readPEM(file, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return cert, nil
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	raw, err := readPEM(file, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read %s: it holds a %T, not an ECDSA key", file, key)
	}
	return ec, nil
}

// writePEM replaces a file as a whole.
func writePEM(file, kind string, raw []byte, mode os.FileMode, owner int) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return wholefile.Replace(file, mode, func(f *os.File) error {
		if owner != 0 {
			if err := f.Chown(owner, owner); err != nil {
				return err
			}
		}
		return pem.Encode(f, &pem.Block{Type: kind, Bytes: raw})
	})
}
