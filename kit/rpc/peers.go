package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	optionsv1 "staddle.internal/proto/gen/staddle/options/v1"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// maxStrangers bounds how many connections those without a role have at a time:
// any user of the machine may connect, and none may use up our descriptors.
const maxStrangers = 64

// Peers knows which system users are which role.
type Peers struct {
	byUID      map[uint32][]optionsv1.Role
	admins     string       // group by name or number
	adminGroup *uint32      // nil as long as there is no such group
	strangers  atomic.Int64 // their open connections
}

// localRoles pairs every process that has a user with its role.
var localRoles = map[string]optionsv1.Role{
	"clusteraccess": optionsv1.Role_ROLE_CLUSTERACCESS,
	"storage":       optionsv1.Role_ROLE_STORAGE,
	"storage-agent": optionsv1.Role_ROLE_STORAGE_AGENT,
	"sandboxhost":   optionsv1.Role_ROLE_SANDBOXHOST,
	"sandbox-agent": optionsv1.Role_ROLE_SANDBOX_AGENT,
	"presence":      optionsv1.Role_ROLE_PRESENCE,
	"supervisor":    optionsv1.Role_ROLE_SUPERVISOR,
	"coordinator":   optionsv1.Role_ROLE_COORDINATOR,
}

// RoleOf returns the role of a process by its name, and UNSPECIFIED for a name
// that is none of ours.
func RoleOf(process string) optionsv1.Role { return localRoles[process] }

// NewPeers builds the table from the configuration. Root is operator and
// supervisor. With users given by number or name each process is its own; without,
// the users staddle-<process> that exist are, and root and the user of this process
// may be any of them. A user or group that does not exist is nobody.
func NewPeers(users config.Users) *Peers {
	p := &Peers{byUID: map[uint32][]optionsv1.Role{}}
	p.grant(0, optionsv1.Role_ROLE_OPERATOR, optionsv1.Role_ROLE_SUPERVISOR)
	for _, name := range config.Processes() {
		if id, ok := users.ID(name); ok {
			p.grant(uint32(id), localRoles[name])
		} else if id, ok := systemUser("staddle-" + name); ok {
			p.grant(id, localRoles[name])
		}
	}
	if !users.Separate() {
		p.grantAll(0)
		if own := uint32(os.Geteuid()); len(p.byUID[own]) == 0 {
			p.grant(own, optionsv1.Role_ROLE_OPERATOR)
			p.grantAll(own)
		}
	}
	p.admins = users.AdminGroup
	if gid, ok := groupID(p.admins); ok {
		p.adminGroup = &gid
	}
	return p
}

func (p *Peers) grant(uid uint32, roles ...optionsv1.Role) {
	for _, r := range roles {
		if !slices.Contains(p.byUID[uid], r) {
			p.byUID[uid] = append(p.byUID[uid], r)
		}
	}
}

func (p *Peers) grantAll(uid uint32) {
	p.grant(uid, optionsv1.Role_ROLE_SUPERVISOR)
	for _, name := range config.Processes() {
		p.grant(uid, localRoles[name])
	}
}

// roles returns what a peer may be, the first being what it is unless it says
// otherwise. None means a stranger.
func (p *Peers) roles(uid uint32, groups []uint32) []optionsv1.Role {
	roles := p.byUID[uid]
	if p.isAdmin(groups, len(roles) == 0) && !slices.Contains(roles, optionsv1.Role_ROLE_OPERATOR) {
		roles = append(slices.Clone(roles), optionsv1.Role_ROLE_OPERATOR)
	}
	return roles
}

// isAdmin says whether one of the groups is the admin group. One that was not
// there at the start is looked up again for a stranger, so that making it needs no
// restart; for a process of ours nothing is asked that could be slow.
func (p *Peers) isAdmin(groups []uint32, stranger bool) bool {
	if p.adminGroup != nil {
		return slices.Contains(groups, *p.adminGroup)
	}
	if !stranger {
		return false
	}
	gid, ok := groupID(p.admins)
	return ok && slices.Contains(groups, gid)
}

func systemUser(name string) (uint32, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false // no such user: the role has no holder
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(id), err == nil
}

// groupID resolves a name or number. Group 0 is never the admin group by
// accident: an empty name has no members.
func groupID(group string) (uint32, bool) {
	if id, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(id), true
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, false // no such group: it has no members
	}
	id, err := strconv.ParseUint(g.Gid, 10, 32)
	return uint32(id), err == nil
}

// localPeer is the AuthInfo of a connection over a unix socket.
type localPeer struct {
	credentials.CommonAuthInfo
	roles         []optionsv1.Role
	uid, gid, pid int
}

// AuthType names the way of authentication.
func (localPeer) AuthType() string { return "peercred" }

// peerOf asks the kernel who connected. The supplementary groups are those at
// the time of connecting: no process id is looked at, so none can be reused.
func (p *Peers) peerOf(conn *net.UnixConn) (localPeer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return localPeer{}, fmt.Errorf("ask for peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var groups []uint32
	var credErr, groupErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		groups, groupErr = peerGroups(int(fd))
	})
	if err != nil || credErr != nil || groupErr != nil {
		return localPeer{}, fmt.Errorf("ask for peer credentials: %w", firstError(err, credErr, groupErr))
	}
	return localPeer{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		roles:          p.roles(cred.Uid, append(groups, cred.Gid)),
		uid:            int(cred.Uid), gid: int(cred.Gid), pid: int(cred.Pid),
	}, nil
}

// letIn counts a connection of a stranger until it is closed.
func (p *Peers) letIn(conn net.Conn, uid int) (net.Conn, error) {
	if p.strangers.Add(1) > maxStrangers {
		p.strangers.Add(-1)
		return conn, fmt.Errorf("accept connection of uid %d: it has no role, and %d like it are connected", uid, maxStrangers)
	}
	return &strangeConn{Conn: conn, left: sync.OnceFunc(func() { p.strangers.Add(-1) })}, nil
}

// strangeConn is a connection that is counted.
type strangeConn struct {
	net.Conn
	left func()
}

// Close closes it, and makes room for another.
func (c *strangeConn) Close() error {
	c.left()
	return c.Conn.Close()
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// peerGroups reads SO_PEERGROUPS; the kernel says the needed size by ERANGE.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ENODATA, errno == unix.ENOPROTOOPT:
			return nil, nil // a peer without groups, or a kernel that cannot say
		case errno == unix.ERANGE && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// RemoteRole reads the role and the name of a caller from the SPIFFE URI of its
// certificate, which the TLS handshake has verified: node, user or coordinator.
func RemoteRole(cert *x509.Certificate) (optionsv1.Role, string, error) {
	if len(cert.URIs) != 1 {
		return 0, "", fault.New(fault.Denied, "read certificate: %d URIs, not one SPIFFE identity", len(cert.URIs))
	}
	role, err := roleOfURI(cert.URIs[0])
	if err != nil {
		return 0, "", err
	}
	return role, cert.URIs[0].String(), nil
}

func roleOfURI(uri *url.URL) (optionsv1.Role, error) {
	kind, name, ok := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
	if uri.Scheme != "spiffe" || uri.Host == "" || !ok || name == "" || strings.Contains(name, "/") ||
		uri.User != nil || uri.RawQuery != "" || uri.Fragment != "" {
		return 0, fault.New(fault.Denied, "read identity %q: not spiffe://<domain>/<kind>/<name>", uri)
	}
	switch kind {
	case "user":
		return optionsv1.Role_ROLE_OPERATOR, nil
	case "node":
		return optionsv1.Role_ROLE_NODE, nil
	case "coordinator":
		return optionsv1.Role_ROLE_COORDINATOR, nil
	}
	return 0, fault.New(fault.Denied, "read identity %q: kind %q has no role", uri, kind)
}

// handshaker takes peer credentials from unix sockets and, where there is a
// configuration for it, TLS from everything else.
type handshaker struct {
	peers *Peers
	tls   credentials.TransportCredentials // nil: unix sockets only
}

// ServerHandshake does not refuse a stranger on a unix socket: each call does, so
// that the caller learns why. Only their number is bounded.
func (h *handshaker) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if uc, ok := conn.(*net.UnixConn); ok {
		peer, err := h.peers.peerOf(uc)
		if err == nil && len(peer.roles) == 0 {
			conn, err = h.peers.letIn(conn, peer.uid)
		}
		return conn, peer, err
	}
	if h.tls == nil {
		return nil, nil, fmt.Errorf("accept connection from %s: no certificate is configured", conn.RemoteAddr())
	}
	return h.tls.ServerHandshake(conn)
}

// ClientHandshake is the client's end on a unix socket, where there is nothing
// to agree on.
func (h *handshaker) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, ok := conn.(*net.UnixConn); ok {
		return conn, localPeer{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	if h.tls == nil {
		return nil, nil, fmt.Errorf("connect to %s: no certificate is configured", conn.RemoteAddr())
	}
	return h.tls.ClientHandshake(ctx, authority, conn)
}

// Info describes the protocol.
func (h *handshaker) Info() credentials.ProtocolInfo {
	if h.tls != nil {
		return h.tls.Info()
	}
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

// Clone copies what has state.
func (h *handshaker) Clone() credentials.TransportCredentials {
	c := *h
	if h.tls != nil {
		c.tls = h.tls.Clone()
	}
	return &c
}

// OverrideServerName is part of the interface; the name comes from the target.
func (h *handshaker) OverrideServerName(string) error { return nil }
