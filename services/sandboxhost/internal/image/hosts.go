package image

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Bounds of a hosts.toml.
const (
	maxHostsFile = 1 << 20
	maxMirrors   = 16
)

// hostsFile is a hosts.toml as it is written. The runtime's library reads it too, but
// takes one that it does not understand for none: a mirror or a CA would be left out
// without a word.
type hostsFile struct {
	hostEntry
	Server string               `toml:"server"`
	Host   map[string]hostEntry `toml:"host"`
}

type hostEntry struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

func (e hostEntry) tls() bool { return e.CA != nil || e.Client != nil || e.SkipVerify != nil }

// hostsDir is what the folder of one registry says, beyond what the library reads.
type hostsDir struct {
	path  string
	tls   bool     // the registry itself is to be spoken to with TLS
	plain []string // hosts that it says to speak to without
}

// readHostsDir checks the folder of a registry. All that is wrong is one error.
func readHostsDir(dir string) (hostsDir, error) {
	path := filepath.Join(dir, "hosts.toml")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return certificatesOnly(dir)
	}
	if err != nil {
		return hostsDir{}, misconfigured(path, err)
	}
	if info.Size() > maxHostsFile {
		return hostsDir{}, misconfigured(path, fmt.Errorf("it has %d bytes of at most %d", info.Size(), maxHostsFile))
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return hostsDir{}, misconfigured(path, err)
	}
	var file hostsFile
	if err := toml.NewDecoder(bytes.NewReader(raw)).DisallowUnknownFields().Decode(&file); err != nil {
		return hostsDir{}, misconfigured(path, tomlError(err))
	}
	found, wrong := file.check(dir)
	if len(wrong) > 0 {
		return hostsDir{}, misconfigured(path, errors.New(strings.Join(wrong, "; ")))
	}
	return found, nil
}

// certificatesOnly is a folder in docker's layout: *.crt are CAs, *.cert and *.key
// are the client's.
func certificatesOnly(dir string) (hostsDir, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return hostsDir{}, misconfigured(dir, err)
	}
	found := hostsDir{path: dir}
	for _, e := range entries {
		found.tls = found.tls || strings.HasSuffix(e.Name(), ".crt") || strings.HasSuffix(e.Name(), ".cert")
	}
	return found, nil
}

// tomlError says where and what, without the picture that the library draws.
func tomlError(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var unknown []string
		for _, e := range strict.Errors {
			row, _ := e.Position()
			unknown = append(unknown, fmt.Sprintf("line %d: key %s is not known", row, strings.Join(e.Key(), ".")))
		}
		return errors.New(strings.Join(unknown, "; "))
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := wrong.Position()
		return fmt.Errorf("line %d: %w", row, err)
	}
	return err
}

// check lists what is wrong with a hosts.toml.
func (f hostsFile) check(dir string) (hostsDir, []string) {
	found := hostsDir{path: dir, tls: f.tls()}
	var wrong []string
	if len(f.Host) > maxMirrors {
		wrong = append(wrong, fmt.Sprintf("%d hosts are too many, write at most %d", len(f.Host), maxMirrors))
	}
	entry := func(where, address string, e hostEntry) {
		plain, text := checkAddress(address, e)
		if text != "" {
			wrong = append(wrong, where+": "+text)
		}
		if plain != "" {
			found.plain = append(found.plain, plain)
		}
		for _, text := range e.check(dir) {
			wrong = append(wrong, where+": "+text)
		}
	}
	for _, address := range sortedKeys(f.Host) {
		entry(fmt.Sprintf("host %q", address), address, f.Host[address])
	}
	entry("server", f.Server, f.hostEntry)
	return found, wrong
}

func sortedKeys(m map[string]hostEntry) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// checkAddress returns the host if it is spoken to without TLS, and what is wrong.
func checkAddress(address string, e hostEntry) (plain, wrong string) {
	if address == "" {
		return "", "" // the registry of the folder's name
	}
	if !strings.Contains(address, "://") && !strings.HasPrefix(address, "http") { // as the library takes it
		address = "https://" + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "":
		return "", "this is no address of a registry; write https://host:port"
	case u.User != nil:
		return "", "credentials do not belong here; write them into the file of credentials (images.auth_file)"
	case u.Scheme == "http" && e.tls():
		return "", "ca, client and skip_verify are for TLS; write https://"
	case u.Scheme == "http":
		return u.Host, ""
	}
	return "", ""
}

func (e hostEntry) check(dir string) []string {
	var wrong []string
	for _, c := range e.Capabilities {
		if !slices.Contains([]string{"pull", "resolve", "push", "referrers"}, strings.ToLower(c)) {
			wrong = append(wrong, fmt.Sprintf("capability %q is not known, write pull or resolve", c))
		}
	}
	for _, text := range []string{checkCAs(dir, e.CA), checkClient(dir, e.Client)} {
		if text != "" {
			wrong = append(wrong, text)
		}
	}
	for name, value := range e.Header {
		if _, ok := texts(value); !ok {
			wrong = append(wrong, fmt.Sprintf("header %s is neither a text nor a list of texts", name))
		}
	}
	if _, err := time.ParseDuration(e.DialTimeout); e.DialTimeout != "" && err != nil {
		wrong = append(wrong, fmt.Sprintf("dial_timeout %q is no duration, write one like 3s", e.DialTimeout))
	}
	return wrong
}

// texts takes a text, or a list of them.
func texts(value any) ([]string, bool) {
	switch v := value.(type) {
	case nil:
		return nil, true
	case string:
		return []string{v}, true
	case []any:
		var all []string
		for _, one := range v {
			s, ok := one.(string)
			if !ok {
				return nil, false
			}
			all = append(all, s)
		}
		return all, true
	}
	return nil, false
}

func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func checkCAs(dir string, value any) string {
	files, ok := texts(value)
	if !ok {
		return "ca is neither a file nor a list of files"
	}
	for _, file := range files {
		raw, err := os.ReadFile(within(dir, file))
		if err != nil {
			return fmt.Sprintf("ca: %v", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(raw) {
			return fmt.Sprintf("ca: %s holds no certificate in PEM", within(dir, file))
		}
	}
	return ""
}

// checkClient takes a file with certificate and key, a list of them, or a list of
// pairs of files.
func checkClient(dir string, value any) string {
	list, isList := value.([]any)
	if !isList && value != nil {
		list = []any{value}
	}
	for _, one := range list {
		files, ok := texts(one)
		if !ok || len(files) == 0 || len(files) > 2 {
			return "client is neither a file, a list of files, nor a list of pairs of certificate and key"
		}
		cert, key := within(dir, files[0]), within(dir, files[len(files)-1])
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return fmt.Sprintf("client %s: %v", cert, err)
		}
	}
	return ""
}
