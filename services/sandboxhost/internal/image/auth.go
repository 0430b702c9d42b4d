package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"staddle.internal/kit/fault"
)

// maxAuthFile bounds the file of credentials, which is read into memory.
const maxAuthFile = 1 << 20

// credential is what one entry of the file says. Identity is a token that is
// exchanged for others, in the place of a password.
type credential struct {
	entry, user, secret string
}

// credentials looks up what a registry is told, for the repository of one pull. It
// reads the file when a registry asks, so that one who needs none is not kept out
// by what is wrong with it.
type credentials struct {
	path       string
	repository string

	mu     sync.Mutex
	answer map[string]string // by host: what was found, for people
}

// lookup is for docker.WithAuthCreds.
func (c *credentials) lookup(host string) (user, secret string, err error) {
	found, said, err := c.find(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer[host] = said
	return found.user, found.secret, err
}

// said tells which credentials a host was given. It never holds a secret.
func (c *credentials) said(host string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answer[host]
}

func (c *credentials) find(host string) (found credential, said string, err error) {
	if c.path == "" {
		return credential{}, "no file of credentials is configured", nil
	}
	file, err := readAuth(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return credential{}, fmt.Sprintf("there are no credentials: no file %s", c.path), nil
	}
	if err != nil {
		return credential{}, "", misconfigured(c.path, err)
	}
	found, ok, err := file.choose(host, c.repository)
	switch {
	case err != nil:
		return credential{}, "", misconfigured(c.path, err)
	case ok:
		return found, fmt.Sprintf("with the credentials of entry %q in %s", found.entry, c.path), nil
	case file.helped(host):
		return credential{}, fmt.Sprintf("there are no credentials for %s in %s, which names a credential helper: "+
			"those are not run, write the entry under auths", host, c.path), nil
	}
	return credential{}, fmt.Sprintf("there are no credentials for %s in %s", host, c.path), nil
}

// authFile is the part of docker's config.json that is about registries.
type authFile struct {
	Auths       map[string]authEntry `json:"auths"`
	CredsStore  string               `json:"credsStore"`
	CredHelpers map[string]string    `json:"credHelpers"`
}

// authEntry is what one registry is told: Auth is user:password in base64.
type authEntry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
}

// readAuth reads the file, and refuses one that anybody can read.
func readAuth(path string) (authFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return authFile{}, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return authFile{}, err
	}
	switch {
	case !info.Mode().IsRegular():
		return authFile{}, errors.New("it is no file")
	case info.Mode().Perm()&0o007 != 0:
		return authFile{}, fmt.Errorf("its mode %04o lets every user of this machine at the secrets in it; chmod 600 it", info.Mode().Perm())
	case info.Size() > maxAuthFile:
		return authFile{}, fmt.Errorf("it has %d bytes of at most %d", info.Size(), maxAuthFile)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
	if err != nil {
		return authFile{}, err
	}
	var file authFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return authFile{}, fmt.Errorf("it is no docker config.json: %w", shapeOnly(err))
	}
	return file, nil
}

// shapeOnly keeps of an error of the decoder where it is, and not what stands there.
func shapeOnly(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("key %s at byte %d is no %s", wrong.Field, wrong.Offset, wrong.Type)
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("no JSON at byte %d", wrong.Offset)
	}
	return errors.New("no JSON")
}

// choose returns the entry for a repository at a host: the one with the longest path
// of it, and at last that of the host alone.
func (f authFile) choose(host, repository string) (credential, bool, error) {
	entries := map[string]string{} // normalized -> key
	for key := range f.Auths {
		entries[entryName(key)] = key
	}
	for _, name := range namesOf(host) {
		path := name + "/" + repository
		for {
			if key, ok := entries[path]; ok {
				found, err := f.Auths[key].credential(key)
				return found, found.secret != "", err
			}
			cut := strings.LastIndexByte(path, '/')
			if cut < 0 {
				break
			}
			path = path[:cut]
		}
	}
	return credential{}, false, nil
}

// helped says whether the file leaves a host to a credential helper.
func (f authFile) helped(host string) bool {
	for _, name := range namesOf(host) {
		if f.CredHelpers[name] != "" {
			return true
		}
	}
	return f.CredsStore != ""
}

// entryName is the host and path that a key of auths is about. Docker writes
// addresses for some: "https://index.docker.io/v1/".
func entryName(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	key = strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
	return key
}

// namesOf lists under which names a host may stand in the file. Docker's own
// registry has three.
func namesOf(host string) []string {
	switch host {
	case "docker.io", "index.docker.io", "registry-1.docker.io":
		return []string{"docker.io", "index.docker.io", "registry-1.docker.io"}
	}
	return []string{host}
}

func (e authEntry) credential(key string) (credential, error) {
	c := credential{entry: key, user: e.Username, secret: e.Password}
	if e.IdentityToken != "" {
		return credential{entry: key, secret: e.IdentityToken}, nil
	}
	if e.Auth == "" {
		return c, nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(e.Auth))
	if err != nil {
		return credential{}, fmt.Errorf("auth of entry %q is no base64", key)
	}
	user, password, ok := strings.Cut(string(raw), ":")
	if !ok || user == "" {
		return credential{}, fmt.Errorf("auth of entry %q is not user:password in base64", key)
	}
	c.user, c.secret = user, strings.TrimRight(password, "\x00\n")
	return c, nil
}

// misconfigured is an error of what the operator has written for registries. It is
// Unavailable: a sandbox that waits for its image goes on once that is mended.
func misconfigured(where string, err error) error {
	return fault.WithReason(fault.New(fault.Unavailable, "registry configuration %s: %w", where, err), "REGISTRY_CONFIG_INVALID")
}
