package image

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/testimage"
)

// wantText checks an error's words, and that no secret is among them.
func wantText(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("%q holds the secret", err)
	}
}

const secret = "open-sesame-4711"

func TestStore_TrustsTheCAOfItsRegistry(t *testing.T) {
	ca, cert := authority(t)
	d := open(t, cert)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	s := newConfigured(t, nil)
	s.hosts(t, d.host, "")
	if err := os.Rename(filepath.Join(s.dir, d.host, "hosts.toml"), filepath.Join(s.dir, d.host, "none.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), ref, nil); err == nil {
		t.Error("pulled with a CA file that holds none")
	}
	if err := os.Remove(filepath.Join(s.dir, d.host, "none.crt")); err != nil {
		t.Fatal(err)
	}
	s.hosts(t, d.host, `server = "https://`+d.host+`"`)
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "certificate", d.host)
	// What is configured counts at the next pull.
	s.hosts(t, d.host, "server = \"https://"+d.host+"\"\nca = \""+ca+"\"\n")
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
	if _, err := s.Pull(t.Context(), strings.Replace(ref, "127.0.0.1", "localhost", 1), nil); err == nil {
		t.Error("a registry under another name, of which nothing is configured, was trusted")
	}
	s.hosts(t, d.host, "skip_verify = true\n")
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Errorf("skip_verify: %v", err)
	}
}

func TestStore_ShowsCredentials(t *testing.T) {
	d := open(t, nil)
	ref := d.push(t, "team/prog:1", testimage.New(t))
	d.rules(asksFor("bob", secret))
	s := newConfigured(t, nil)
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, d.host, "no file "+s.auth)

	s.login(t, map[string]authEntry{"other.example": basic("bob", secret)})
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, d.host, "there are no credentials for "+d.host, s.auth)

	s.login(t, map[string]authEntry{d.host: basic("alice", secret)})
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, "with the credentials of entry", d.host, s.auth)

	if err := os.WriteFile(s.auth, []byte(`{"auths": {"`+d.host+`": {}}, "credsStore": "desktop"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, "credential helper", "under auths")

	s.login(t, map[string]authEntry{d.host: basic("alice", secret), d.host + "/team": basic("bob", secret)})
	if err := os.Chmod(s.auth, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Unavailable)
	wantText(t, err, "0644", "chmod 600", s.auth)
	if fault.Reason(err) != "REGISTRY_CONFIG_INVALID" {
		t.Errorf("got reason %s", fault.Reason(err))
	}
	if err := os.Chmod(s.auth, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.log.String(), secret) {
		t.Errorf("the log holds the secret:\n%s", s.log)
	}
}

// A registry may store its parts elsewhere, but no secret goes there, even to another
// port of the same host.
func TestStore_TakesNoSecretToAnotherHost(t *testing.T) {
	d, elsewhere := open(t, nil), open(t, nil)
	img := testimage.New(t)
	ref := d.push(t, "test/prog:1", img)
	elsewhere.push(t, "test/prog:1", img)
	ask := asksFor("bob", secret)
	d.rules(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		ask(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if blob(r) {
				http.Redirect(w, r, "http://"+elsewhere.host+r.URL.Path+"?signature="+secret, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		}))
	})
	s := newConfigured(t, nil)
	s.hosts(t, d.host, "server = \"http://"+d.host+"\"\n[header]\nX-Secret = \""+secret+"\"\n")
	s.login(t, map[string]authEntry{d.host: basic("bob", secret)})
	elsewhere.rules(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, "403") // and not the signature
	elsewhere.rules(nil)
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	for _, a := range d.requests(every) {
		if a.secretHeader != secret {
			t.Errorf("the registry did not get its header with %s", a.path)
		}
	}
	got := elsewhere.requests(every)
	if len(got) == 0 {
		t.Error("nothing was fetched elsewhere")
	}
	for _, a := range got {
		if a.authorization != "" || a.secretHeader != "" {
			t.Errorf("%s %s took a secret along: %q, %q", a.method, a.path, a.authorization, a.secretHeader)
		}
	}
}

// tokens is a registry that wants tokens, and the server that gives them.
func tokens(t *testing.T, d *door, give http.HandlerFunc) {
	t.Helper()
	s := httptest.NewServer(give)
	t.Cleanup(s.Close)
	d.rules(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:test/prog:pull"`, s.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func TestStore_ExchangesAnIdentityToken(t *testing.T) {
	d := open(t, nil)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	var mu sync.Mutex
	var got []string
	tokens(t, d, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, r.FormValue("grant_type")+" "+r.FormValue("refresh_token"))
		mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]string{"access_token": "good", "token": "good"})
	})
	s := newConfigured(t, nil)
	s.login(t, map[string]authEntry{d.host: {IdentityToken: secret}})
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) == 0 || got[0] != "refresh_token "+secret {
		t.Errorf("the server of tokens got %q", got)
	}
}

func TestStore_LetsNobodySendAPasswordOn(t *testing.T) {
	d := open(t, nil)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	thief := open(t, nil)
	tokens(t, d, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+thief.host+"/token", http.StatusTemporaryRedirect)
	})
	s := newConfigured(t, nil)
	s.login(t, map[string]authEntry{d.host: basic("bob", secret)})
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, "must not see the password")
	if got := thief.requests(every); len(got) != 0 {
		t.Errorf("it was asked %v", got)
	}
}

func TestStore_AsksMirrorsInOrder(t *testing.T) {
	first, second, d := open(t, nil), open(t, nil), open(t, nil)
	img := testimage.New(t)
	ref := d.push(t, "test/prog:1", img)
	second.push(t, "test/prog:1", img)
	ask := asksFor("bob", secret)
	d.rules(ask)
	down := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) }
	first.rules(down)
	s := newConfigured(t, nil)
	s.login(t, map[string]authEntry{d.host: basic("bob", secret)})
	s.hosts(t, d.host, fmt.Sprintf("server = \"http://%s\"\n[host.\"http://%s\"]\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", d.host, first.host, second.host))
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.requests(every); len(got) != 0 {
		t.Errorf("the registry was asked %v, though a mirror has it", got)
	}
	if len(first.requests(every)) == 0 || len(second.requests(every)) == 0 {
		t.Error("a mirror was not asked")
	}

	// A mirror behind a page to log in at, and one that has the name, and not all parts.
	first.rules(loginPage)
	layer, _ := lastLayer(t, img)
	missing := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, layer.String()) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	}
	second.rules(missing)
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	first.rules(down)
	if got := d.requests(forBlob(layer)); len(got) == 0 {
		t.Error("the part that the mirror lacks was not fetched from the registry")
	}
	for _, mirror := range []*door{first, second} {
		for _, a := range mirror.requests(every) {
			if a.authorization != "" {
				t.Errorf("a mirror got %q", a.authorization)
			}
		}
	}

	// Nobody gives it: each is named with its reason, and the registry's word counts.
	if _, err := s.Remove(t.Context(), ref, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	second.rules(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) })
	d.rules(asksFor("bob", "another"))
	_, err := s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Denied)
	wantText(t, err, "none of 3 hosts", first.host+": ", "502", second.host+": ", "not found", d.host+": ", "with the credentials of entry")
	d.rules(down)
	_, err = s.Ensure(t.Context(), ref, nil)
	wantKind(t, err, fault.Unavailable)
}

func TestStore_SaysWhatIsWrongInHostsToml(t *testing.T) {
	s := newConfigured(t, nil)
	d := open(t, nil)
	ref := d.push(t, "test/prog:1", testimage.New(t))
	d.rules(nil)
	for text, want := range map[string]string{
		"servr = \"https://x\"\n":                         "line 1: key servr is not known",
		"server = \"https://x\"\n\nca = \"none.crt\"\n":   "none.crt",
		"server = https://x\n":                            "line 1",
		"[host.\"https://u:p@x\"]\n":                      "credentials do not belong here",
		"[host.\"ftp://x\"]\n":                            "no address",
		"[host.\"http://x\"]\nskip_verify = true\n":       "write https://",
		"capabilities = [\"pul\"]\n":                      `capability "pul"`,
		"dial_timeout = \"soon\"\n":                       "no duration",
		"client = [[\"a\", \"b\", \"c\"]]\n":              "client",
		"server = \"https://x\"\n[header]\nX-A = 7\n":     "header X-A",
		"ca = 7\ncapabilities = [\"no\"]\n":               "ca is neither",
		"[host.\"https://y\"]\ncapabilities = [\"no\"]\n": "host \"https://y\"",
	} {
		s.hosts(t, d.host, text)
		_, err := s.Ensure(t.Context(), ref, nil)
		wantKind(t, err, fault.Unavailable)
		wantText(t, err, want, filepath.Join(s.dir, d.host, "hosts.toml"))
		if fault.Reason(err) != "REGISTRY_CONFIG_INVALID" {
			t.Errorf("%q: got reason %s", text, fault.Reason(err))
		}
	}
	if got := d.requests(every); len(got) != 0 {
		t.Errorf("a registry was asked although its configuration is wrong: %v", got)
	}
	s.hosts(t, d.host, "server = \"http://"+d.host+"\"\ncapabilities = [\"push\"]\n")
	_, err := s.Ensure(t.Context(), ref, nil)
	wantText(t, err, "capabilities")
}
