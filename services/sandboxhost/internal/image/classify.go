package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"staddle.internal/kit/fault"
)

// classify gives an error of registry or runtime its kind, and says what it means.
func classify(doing string, err error) error {
	if part, ok := errors.AsType[partError](err); ok {
		return part.fault(doing + ": fetch " + part.what())
	}
	if all, ok := errors.AsType[refusals](err); ok {
		return all.fault(doing)
	}
	if kind, ok := errors.AsType[fault.Kind](err); ok { // our own word
		return fault.WithReason(fault.New(kind, "%s: %w", doing, err), fault.Reason(err))
	}
	if status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok {
		return classifyStatus(doing, status.StatusCode, err)
	}
	switch {
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
	case broken(err):
		return fault.WithReason(fault.New(fault.Invalid, "%s: its content is broken, push it anew: %w", doing, err), "IMAGE_BROKEN")
	}
	return fault.New(fault.Unavailable, "%s: %w", doing, err)
}

func classifyStatus(doing string, code int, err error) error {
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fault.New(fault.Denied, "%s: the registry asks for other credentials: %w", doing, err)
	case code == http.StatusNotFound:
		return fault.New(fault.NotFound, "%s: the registry has no such image: %w", doing, err)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= http.StatusInternalServerError:
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

// broken knows the words in which the runtime says that a layer, which is what its
// digest says, is no archive, or not of the files that the image says.
func broken(err error) bool {
	text := err.Error()
	if strings.Contains(text, "wrong diff id") {
		return true
	}
	if !strings.Contains(text, "failed to extract layer") {
		return false
	}
	for _, words := range []string{
		"archive/tar: ", "gzip: ", "flate: ", "zstd", "magic number mismatch", "invalid magic", io.ErrUnexpectedEOF.Error(), "no processor for media-type",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// refusal is why one host did not give what it was asked for.
type refusal struct {
	host string
	said string // about the credentials that it was given
	err  error
}

// refusals is why none did. The last host is the registry itself, and its answer is
// what counts.
type refusals []refusal

// Error names each host with its reason.
func (r refusals) Error() string {
	each := make([]string, len(r))
	for i, one := range r {
		each[i] = fmt.Sprintf("%s: %s", one.host, secretless(one.err.Error()))
	}
	if len(each) == 1 {
		return "registry " + each[0]
	}
	return fmt.Sprintf("none of %d hosts gave it: %s", len(each), strings.Join(each, "; "))
}

func (r refusals) last() refusal { return r[len(r)-1] }

// fault is the answer of the last host, in the words of all.
func (r refusals) fault(doing string) error {
	judged := classify(doing, r.last().err)
	kind, reason := fault.KindOf(judged), fault.Reason(judged)
	text := r.Error()
	if kind == fault.Denied && r.last().said != "" {
		text += " (" + r.last().said + ")"
	}
	switch {
	case kind == fault.NotFound && errdefs.IsNotFound(r.last().err):
		text = "the registry has no such image: " + text
	case kind == fault.Denied:
		text = "the registry asks for other credentials: " + text
	case reason == "REGISTRY_UNREACHABLE":
		text = "not present and registry unreachable: " + text
	case reason == "DISK_FULL":
		text = "the disk is full: " + text
	}
	err := fault.New(kind, "%s: %s", doing, text)
	if reason != "" {
		err = fault.WithReason(err, reason)
	}
	return err
}

var query = regexp.MustCompile(`\?[^\s"']+`)

// secretless takes out what an address may carry behind its path: stores sign theirs.
func secretless(text string) string { return query.ReplaceAllString(text, "?…") }
