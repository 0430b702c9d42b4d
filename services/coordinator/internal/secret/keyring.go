package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/wholefile"
)

// ReasonKeysMissing is of Unavailable: this coordinator does not have the
// keys by which the cluster's secrets are encrypted.
const ReasonKeysMissing = "SECRET_KEYS_MISSING"

// maxKeyFile bounds what is read of the file of keys.
const maxKeyFile = 1 << 20

// witnessText is what is kept encrypted in the store, by which a coordinator finds out
// whether it has the cluster's keys.
const witnessText = "the keys of this cluster's secrets"

// witnesses is where the witness is kept.
type witnesses interface {
	// Witness returns it, nil if there is none.
	Witness(ctx context.Context) ([]byte, error)
	// MakeWitness writes it unless there is one, and says whether it did.
	MakeWitness(ctx context.Context, sealed []byte) (bool, error)
	// SetWitness writes it.
	SetWitness(ctx context.Context, sealed []byte) error
}

// keyring holds the keys. The file is read when a key is needed first, and made when
// the cluster has none yet; a file that is lost is never made anew, since what it
// encrypted would be lost with it.
type keyring struct {
	path string

	mu     sync.Mutex // guards all below, and the file
	handle *keyset.Handle
	cipher tink.AEAD
}

// ready returns the cipher whose keys are the cluster's.
func (k *keyring) ready(ctx context.Context, store witnesses) (tink.AEAD, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.readyLocked(ctx, store); err != nil {
		return nil, err
	}
	return k.cipher, nil
}

// readyLocked reads the keys if that was not done. k.mu is held.
func (k *keyring) readyLocked(ctx context.Context, store witnesses) error {
	if k.cipher != nil {
		return nil
	}
	if err := k.open(ctx, store); err != nil {
		k.handle, k.cipher = nil, nil
		return err
	}
	return nil
}

// again forgets the keys, so that the file is read again: another coordinator may
// have rotated them, and somebody brought its file.
func (k *keyring) again() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handle, k.cipher = nil, nil
}

func (k *keyring) open(ctx context.Context, store witnesses) error {
	witness, err := store.Witness(ctx)
	if err != nil {
		return err
	}
	handle, err := readKeys(k.path)
	absent := errors.Is(err, os.ErrNotExist)
	switch {
	case absent && witness != nil:
		return keysMissing("they are not there: put %s back, from a backup or from another coordinator", k.path)
	case absent:
		if handle, err = keyset.NewHandle(aead.AES256GCMKeyTemplate()); err == nil {
			err = writeKeys(k.path, handle)
		}
	}
	if err != nil {
		return keysMissing("%w", err)
	}
	if err := k.use(handle); err != nil {
		return err
	}
	if witness == nil {
		return k.claim(ctx, store)
	}
	if text, err := k.cipher.Decrypt(witness, []byte(witnessText)); err != nil || string(text) != witnessText {
		return keysMissing("%s has other keys than those of the cluster: bring the file of another coordinator", k.path)
	}
	return nil
}

// use takes a set of keys.
func (k *keyring) use(handle *keyset.Handle) error {
	cipher, err := aead.New(handle)
	if err != nil {
		return keysMissing("%s cannot be used: %w", k.path, err)
	}
	k.handle, k.cipher = handle, cipher
	return nil
}

// claim makes these keys the cluster's, if it has none yet.
func (k *keyring) claim(ctx context.Context, store witnesses) error {
	sealed, err := k.cipher.Encrypt([]byte(witnessText), []byte(witnessText))
	if err != nil {
		return fault.New(fault.Internal, "encrypt the witness of keys: %w", err)
	}
	first, err := store.MakeWitness(ctx, sealed)
	if err == nil && !first {
		err = keysMissing("another coordinator made the cluster's keys meanwhile: bring its file in place of %s", k.path)
	}
	return err
}

// rotate makes a new key, which encrypts from now on. The old ones are kept.
func (k *keyring) rotate(ctx context.Context, store witnesses) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.readyLocked(ctx, store); err != nil {
		return err
	}
	manager := keyset.NewManagerFromHandle(k.handle)
	id, err := manager.Add(aead.AES256GCMKeyTemplate())
	if err == nil {
		err = manager.SetPrimary(id)
	}
	if err != nil {
		return fault.New(fault.Internal, "make a new key: %w", err)
	}
	handle, err := manager.Handle()
	if err != nil {
		return fault.New(fault.Internal, "make a new key: %w", err)
	}
	if err := writeKeys(k.path, handle); err != nil { // first: what it encrypts must never be without it
		return fault.New(fault.Unavailable, "keep the new key: %w", err)
	}
	if err := k.use(handle); err != nil {
		return err
	}
	sealed, err := k.cipher.Encrypt([]byte(witnessText), []byte(witnessText))
	if err != nil {
		return fault.New(fault.Internal, "encrypt the witness of keys: %w", err)
	}
	return store.SetWitness(ctx, sealed)
}

func keysMissing(format string, args ...any) error {
	return fault.WithReason(fault.New(fault.Unavailable, "use the keys of secrets: "+format, args...), ReasonKeysMissing)
}

// readKeys reads the file. Absence is os.ErrNotExist. Its errors never repeat content.
func readKeys(path string) (*keyset.Handle, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others may read %s: chmod 600 %s, and rotate the key", path, path)
	}
	if info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s has %d bytes, which is no file of keys", path, info.Size())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, fmt.Errorf("%s is not a whole file of keys: put it back from a backup or from another coordinator", path)
	}
	return handle, nil
}

// writeKeys replaces the file as a whole, for its owner alone.
func writeKeys(path string, handle *keyset.Handle) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return wholefile.Replace(path, 0o600, func(f *os.File) error {
		if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(f)); err != nil {
			return fmt.Errorf("encode keys: %w", err)
		}
		return nil
	})
}
