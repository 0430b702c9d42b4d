package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"staddle.internal/kit/fault"
)

// Bounds of talking to a registry: "cannot be reached" is said within
// resolveLimit, and a transfer that stands still ends after stallLimit.
const (
	dialLimit    = 5 * time.Second
	answerLimit  = 10 * time.Second
	resolveLimit = 12 * time.Second
	stallLimit   = 30 * time.Second
)

// resolver speaks to registries.
func (s *Store) resolver() remotes.Resolver {
	client := &http.Client{Transport: transport()}
	hosts := docker.ConfigureDefaultRegistries(
		docker.WithClient(client),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthClient(client))),
		docker.WithPlainHTTP(s.plain),
	)
	return bounded{docker.NewResolver(docker.ResolverOptions{Hosts: hosts})}
}

// plain says whether a host may be spoken to without TLS.
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

// bounded is a resolver whose first question has a limit.
type bounded struct{ remotes.Resolver }

// Resolve asks for the digest of a reference.
func (b bounded) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	return b.Resolver.Resolve(ctx, ref)
}

func transport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialLimit}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &impatient{conn}, nil
		},
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          4,
		IdleConnTimeout:       stallLimit,
		TLSHandshakeTimeout:   dialLimit,
		ResponseHeaderTimeout: answerLimit,
	}
}

// impatient is a connection on which each read and write has a limit.
type impatient struct{ net.Conn }

// Read reads what comes within the limit.
func (c *impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(stallLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write writes what is taken within the limit.
func (c *impatient) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(stallLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// classify gives an error of registry or runtime its kind, and says what it means.
func classify(doing string, err error) error {
	if status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok {
		return classifyStatus(doing, status.StatusCode, err)
	}
	switch {
	case errors.Is(err, fault.Invalid): // our own word
		return fmt.Errorf("%s: %w", doing, err)
	case diskFull(err):
		return fault.WithReason(fault.New(fault.Exhausted, "%s: the disk is full: %w", doing, err), "DISK_FULL")
	case errors.Is(err, docker.ErrInvalidAuthorization), errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return fault.New(fault.Denied, "%s: the registry asks for other credentials: %w", doing, err)
	case errdefs.IsNotFound(err):
		return fault.New(fault.NotFound, "%s: the registry has no such image for this platform: %w", doing, err)
	case errdefs.IsInvalidArgument(err), errdefs.IsNotImplemented(err):
		return fault.New(fault.Invalid, "%s: %w", doing, err)
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Unavailable, "%s: nobody waits for it any more: %w", doing, err)
	case unreachable(err):
		return fault.WithReason(fault.New(fault.Unavailable, "%s: not present and registry unreachable: %w", doing, err), "REGISTRY_UNREACHABLE")
	}
	return fault.New(fault.Unavailable, "%s: %w", doing, err)
}

func classifyStatus(doing string, code int, err error) error {
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fault.New(fault.Denied, "%s: the registry asks for other credentials: %w", doing, err)
	case code == http.StatusNotFound:
		return fault.New(fault.NotFound, "%s: the registry has no such image: %w", doing, err)
	case code == http.StatusTooManyRequests || code >= http.StatusInternalServerError:
		return fault.New(fault.Unavailable, "%s: %w", doing, err)
	}
	return fault.New(fault.Invalid, "%s: %w", doing, err)
}

// unreachable says that the registry was not spoken to.
func unreachable(err error) bool {
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, context.DeadlineExceeded)
}

// diskFull also knows the words in which the runtime passes it on.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error())
}
