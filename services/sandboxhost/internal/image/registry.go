package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"staddle.internal/kit/fault"
)

// Bounds of talking to a registry: "cannot be reached" is said within
// resolveLimit, and a transfer that stands still ends after Config.StallTimeout.
const (
	dialLimit    = 5 * time.Second
	answerLimit  = 10 * time.Second
	resolveLimit = 12 * time.Second
	stallDefault = 30 * time.Second
	maxRedirects = 10
)

// origin is one host that an image may come from: a mirror or the registry itself.
type origin struct {
	name     string
	resolver remotes.Resolver
	client   *http.Client
	can      docker.HostCapabilities
}

// origins reads how the registry of an image is reached, in the order in which its
// hosts are asked. It is read anew for each pull.
func (s *Store) origins(ctx context.Context, name string) ([]origin, *credentials, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "image %.200q: %w", name, err)
	}
	registry := reference.Domain(named)
	dir, err := s.registryDir(registry)
	if err != nil {
		return nil, nil, err
	}
	creds := &credentials{path: s.cfg.AuthFile, repository: reference.Path(named), answer: map[string]string{}}
	scheme := "https"
	if plain, err := s.plain(registry); err != nil {
		return nil, nil, err
	} else if plain && !dir.tls {
		scheme = "http"
	}
	hosts, err := config.ConfigureHosts(ctx, config.HostOptions{
		HostDir:       func(string) (string, error) { return dir.path, nil },
		Credentials:   creds.lookup,
		DefaultScheme: scheme, // or the library takes any certificate on loopback, and falls back to none
		UpdateClient:  func(c *http.Client) error { return s.guard(c, dir.plain) },
	})(registry)
	if err != nil {
		return nil, nil, misconfigured(dir.path, err)
	}
	all := make([]origin, len(hosts))
	for i, host := range hosts {
		host.Client = following(host)
		all[i] = origin{name: host.Host, can: host.Capabilities, client: host.Client}
		all[i].resolver = docker.NewResolver(docker.ResolverOptions{
			Hosts: func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{host}, nil },
		})
	}
	return all, creds, nil
}

// registryDir finds and checks the folder of a registry. None is fine.
func (s *Store) registryDir(registry string) (hostsDir, error) {
	if s.cfg.RegistryDir == "" {
		return hostsDir{}, nil
	}
	path, err := config.HostDirFromRoot(s.cfg.RegistryDir)(registry)
	if errdefs.IsNotFound(err) {
		return hostsDir{}, nil
	}
	if err != nil {
		return hostsDir{}, misconfigured(filepath.Join(s.cfg.RegistryDir, registry), err)
	}
	return readHostsDir(path)
}

// plain says whether a host may be spoken to without TLS: one that the
// configuration names, and loopback.
func (s *Store) plain(host string) (bool, error) {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if slices.Contains(s.cfg.PlainHTTP, host) || slices.Contains(s.cfg.PlainHTTP, name) {
		return true, nil
	}
	return docker.MatchLocalhost(host)
}

// guard bounds what a client does, and keeps it from speaking without TLS to hosts
// for which that is not said: neither a redirect nor a registry that sends for a token
// may lead there. It is for the questions for tokens, too, which carry the password:
// no answer may send them on to another host.
func (s *Store) guard(c *http.Client, plain []string) error {
	t, ok := c.Transport.(*http.Transport)
	if _, done := c.Transport.(*guarded); done { // the client of a host that shares it
		return nil
	}
	if !ok {
		return fault.New(fault.Internal, "speak to registries: the transport is a %T", c.Transport)
	}
	t = t.Clone()
	dial, stall := t.DialContext, s.cfg.StallTimeout
	if stall == 0 {
		stall = stallDefault
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &impatient{conn, stall}, nil
	}
	t.ForceAttemptHTTP2 = true
	t.MaxIdleConns, t.IdleConnTimeout = 4, stall
	t.TLSHandshakeTimeout, t.ResponseHeaderTimeout = dialLimit, min(answerLimit, stall)
	c.Transport = &guarded{t, func(host string) bool {
		ok, err := s.plain(host)
		return ok && err == nil || slices.Contains(plain, host)
	}}
	c.CheckRedirect = staying
	return nil
}

// guarded refuses requests without TLS to hosts that are not to get any.
type guarded struct {
	*http.Transport
	plain func(host string) bool
}

// RoundTrip sends a request.
func (g *guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !g.plain(req.URL.Host) {
		return nil, fault.New(fault.Denied, "it leads to %s without TLS, which images.plain_http does not allow", req.URL.Host)
	}
	return g.Transport.RoundTrip(req)
}

// staying follows redirects within one host only.
func staying(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	if from := via[0].URL; req.URL.Host != from.Host || req.URL.Scheme != from.Scheme {
		return fault.New(fault.Denied, "what asks %s for a token is redirected to %s, which must not see the password", from.Host, req.URL.Host)
	}
	return nil
}

// following is the client of a host that follows redirects anywhere, as to where the
// parts are stored, and takes no secret along: neither credentials nor a header that
// the configuration adds. The library would take them to another port of the same
// name, and below it.
func following(host docker.RegistryHost) *http.Client {
	c := *host.Client
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("it redirects more than %d times", maxRedirects)
		}
		if from := via[0].URL; req.URL.Host == from.Host && req.URL.Scheme == from.Scheme {
			return nil
		}
		for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
			req.Header.Del(name)
		}
		for name := range host.Header {
			delete(req.Header, name)
			req.Header.Del(name)
		}
		return host.Authorizer.Authorize(req.Context(), req) // as that host has asked for
	}
	return &c
}

// impatient is a connection on which each read and write has a limit.
type impatient struct {
	net.Conn
	limit time.Duration
}

// Read reads what comes within the limit.
func (c *impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write writes what is taken within the limit.
func (c *impatient) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// closeIdle lets go of the connections of a pull that is over.
func closeIdle(all []origin) {
	for _, o := range all {
		o.client.CloseIdleConnections()
	}
}

// errNoHost is for a registry whose configuration leaves nobody to ask.
func errNoHost(name string) error {
	registry, _, _ := strings.Cut(name, "/")
	return misconfigured(registry, errors.New("no host of it may resolve tags or give content; look at the capabilities in its hosts.toml"))
}
