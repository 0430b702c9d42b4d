package rpc

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/fault"
)

// Metadata keys of our own.
const (
	// CallerKey carries the verified identity for which clusteraccess speaks.
	CallerKey = "staddle-caller"
	// AsKey names the process that a caller is, where one user runs several. It
	// picks among the roles that the caller has and never adds one.
	AsKey = "staddle-as"
)

// Identity is who calls.
type Identity struct {
	// Role that the access rule was met with.
	Role optionsv1.Role
	// Name is the SPIFFE identity of a remote caller, "uid 123" of a local one.
	Name string
	// Remote tells a caller with a certificate from one on this machine.
	Remote bool
	// Via is the name of the local peer that spoke for a remote caller.
	Via string
	// UID, GID and PID of the local peer, -1 for one over TCP.
	UID, GID, PID int
}

type callerKey struct{}

// caller is who calls, as far as it is known, and why it is not.
type caller struct {
	id  Identity
	err error
}

// Caller returns who calls, inside a handler. Outside of one it returns an
// identity without a role.
func Caller(ctx context.Context) Identity {
	id, _ := callerOf(ctx)
	return id
}

// WithCaller returns a context in which Caller returns id, for tests of handlers
// without a server.
func WithCaller(ctx context.Context, id Identity) context.Context {
	return withCaller(ctx, id, nil)
}

func withCaller(ctx context.Context, id Identity, err error) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{id, err})
}

// callerOf returns the identity, and why the caller has none. What nobody has
// identified has none.
func callerOf(ctx context.Context) (Identity, error) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return Identity{UID: -1, GID: -1, PID: -1}, fault.New(fault.Denied, "identify caller: nobody did")
	}
	return c.id, c.err
}

// identify makes an identity of the transport's credentials and of the metadata
// that such a peer may send.
func identify(ctx context.Context) (Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, fault.New(fault.Denied, "identify caller: no peer")
	}
	switch auth := p.AuthInfo.(type) {
	case localPeer:
		return auth.identity(ctx)
	case credentials.TLSInfo:
		return remoteIdentity(auth)
	}
	return Identity{}, fault.New(fault.Denied, "identify caller: the transport has no credentials")
}

func (l localPeer) identity(ctx context.Context) (Identity, error) {
	id := Identity{Name: "uid " + strconv.Itoa(l.uid), UID: l.uid, GID: l.gid, PID: l.pid}
	if len(l.roles) == 0 {
		return id, fault.New(fault.Denied, "identify caller: %s has no role on this node", id.Name)
	}
	id.Role = l.roles[0]
	if as, ok := one(ctx, AsKey); ok {
		role := RoleOf(as)
		if !slices.Contains(l.roles, role) || role == optionsv1.Role_ROLE_UNSPECIFIED {
			return id, fault.New(fault.Denied, "identify caller: %s is not %.40q", id.Name, as)
		}
		id.Role = role
	}
	if spoken, ok := one(ctx, CallerKey); ok && id.Role == optionsv1.Role_ROLE_CLUSTERACCESS {
		return id.speakFor(spoken)
	}
	return id, nil
}

// speakFor turns the identity of clusteraccess into the one it vouches for.
func (id Identity) speakFor(spoken string) (Identity, error) {
	uri, err := url.Parse(spoken)
	if err != nil || len(spoken) > 512 {
		return id, fault.New(fault.Denied, "identify caller: %.80q is no identity", spoken)
	}
	role, err := roleOfURI(uri)
	if err != nil {
		return id, err
	}
	id.Via, id.Role, id.Name, id.Remote = id.Name, role, spoken, true
	return id, nil
}

// remoteIdentity trusts only a chain that the handshake verified. No certificate
// is an identity without a role.
func remoteIdentity(info credentials.TLSInfo) (Identity, error) {
	id := Identity{Name: "anonymous", Remote: true, UID: -1, GID: -1, PID: -1}
	if len(info.State.VerifiedChains) == 0 {
		return id, nil
	}
	var err error
	id.Role, id.Name, err = RemoteRole(info.State.PeerCertificates[0])
	return id, err
}

func one(ctx context.Context, key string) (string, bool) {
	v := metadata.ValueFromIncomingContext(ctx, key)
	if len(v) == 0 {
		return "", false
	}
	return v[len(v)-1], true
}

// admit decides whether the caller may call. anonymous lists the methods that a
// remote caller without certificate may call.
func admit(id Identity, fullMethod string, m method, anonymous []string) error {
	if m.forEveryone && id.Role != optionsv1.Role_ROLE_UNSPECIFIED {
		return nil
	}
	if id.Remote && id.Role == optionsv1.Role_ROLE_UNSPECIFIED {
		if slices.Contains(anonymous, fullMethod) {
			return nil
		}
		return fault.New(fault.Denied, "call %s: a certificate is needed", fullMethod)
	}
	allowed := m.access.GetLocal()
	if id.Remote {
		allowed = m.access.GetRemote()
	}
	if slices.Contains(allowed, id.Role) {
		return nil
	}
	return fault.New(fault.Denied, "call %s: %s as %s may not; allowed are %s", fullMethod, id.Name, roleName(id.Role), roleNames(allowed))
}

func roleName(r optionsv1.Role) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")), "_", "-")
}

func roleNames(roles []optionsv1.Role) string {
	if len(roles) == 0 {
		return "nobody"
	}
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = roleName(r)
	}
	return strings.Join(names, ", ")
}

// strip removes from the metadata what only this package reads, so that no
// handler and no forwarder takes a claim for a fact.
func strip(ctx context.Context) context.Context {
	_, speaks := one(ctx, CallerKey)
	_, claims := one(ctx, AsKey)
	if !speaks && !claims {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx) // a copy
	delete(md, CallerKey)
	delete(md, AsKey)
	return metadata.NewIncomingContext(ctx, md)
}
