package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"staddle.internal/kit/fault"

	"staddle.internal/services/clusteraccess/internal/coordinatortest"
	"staddle.internal/services/clusteraccess/internal/credentials"
)

func TestDoor_WhoIsLetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		elsewhere, err := coordinatortest.NewAuthority()
		must(t, err)
		issue := func(a *coordinatortest.Authority, end time.Duration, identity string) []tls.Certificate {
			cert, err := a.IssueUntil(time.Now().Add(end), identity)
			must(t, err)
			return []tls.Certificate{cert}
		}
		for _, c := range []struct {
			name string
			with []tls.Certificate
			says string // "" means let in; "handshake" that no call is heard at all
		}{
			{"an operator", issue(r.authority, hour, alice), ""},
			{"a coordinator", issue(r.authority, hour, "spiffe://staddle.test/coordinator/c1"), ""},
			{"a node", issue(r.authority, hour, "spiffe://staddle.test/node/node2"), "neither an operator nor a coordinator"},
			{"the node itself", issue(r.authority, hour, "spiffe://staddle.test/node/node1"), "neither an operator nor a coordinator"},
			{"an operator of another domain", issue(r.authority, hour, "spiffe://other.test/user/alice"), "not of the trust domain staddle.test"},
			{"a workload", issue(r.authority, hour, "spiffe://staddle.test/sandbox/web"), "has no role"},
			{"no identity", issue(r.authority, hour, ""), "not one SPIFFE identity"},
			{"an operator by another authority", issue(elsewhere, hour, alice), "handshake"},
			{"an operator whose time is over", issue(r.authority, -time.Second, alice), "handshake"},
			{"nobody", nil, "handshake"},
		} {
			got, err := say(t.Context(), r.with(c.with...), echo, "hello")
			switch c.says {
			case "":
				if err != nil || got != "hello" {
					t.Errorf("%s: %q, %v, want to be let in", c.name, got, err)
				}
			case "handshake":
				if status.Code(err) != codes.Unavailable || len(status.Convert(err).Details()) > 0 {
					t.Errorf("%s: %q, %v, want no connection", c.name, got, err)
				}
			default:
				err = fault.FromStatus(err)
				if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %q, %v, want Denied with %q", c.name, got, err, c.says)
				}
			}
		}
		synctest.Wait()
		if got := strings.Count(r.log.String(), "level=DEBUG msg=\"connection refused\""); got < 3 {
			t.Errorf("%d lines about connections that were refused, want one at least for each:\n%s", got, r.log)
		}
	})
}

func TestDoor_CertificateEndsWhileTheConnectionIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		cert, err := r.authority.IssueUntil(time.Now().Add(time.Minute), alice)
		must(t, err)
		conn := r.with(cert)
		ss := open(t, t.Context(), conn, "/test.Echo/Talk")
		send(t, ss, "hello")
		_, err = receive(ss)
		must(t, err)
		began := time.Now()
		_, err = receive(ss)
		err = fault.FromStatus(err)
		if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "expired") || time.Since(began) > time.Minute {
			t.Errorf("after %s the call ended with %v, want Denied in a minute", time.Since(began), err)
		}
		_, err = say(t.Context(), conn, echo, "again")
		if err = fault.FromStatus(err); fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), "expired") {
			t.Errorf("a call afterwards: %v, want Denied", err)
		}
	})
}

// An identity that the cluster refuses is cut off at once, in the middle of its calls and
// on connections that it has; nobody else notices.
func TestDoor_RefusedIdentityIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, echoes)
		const bob = "spiffe://staddle.test/user/bob"
		hers, his := r.as(alice), r.as(bob)
		talk := func(conn *grpc.ClientConn) grpc.ClientStream {
			ss := open(t, t.Context(), conn, "/test.Echo/Talk")
			send(t, ss, "hello")
			_, err := receive(ss)
			must(t, err)
			return ss
		}
		cut, kept := talk(hers), talk(his)
		r.refused.Refuse([]string{alice})
		_, err := receive(cut)
		if err = fault.FromStatus(err); fault.KindOf(err) != fault.Denied || fault.Reason(err) != "REFUSED" {
			t.Errorf("the open call of a refused caller ended with %v, want Denied with reason REFUSED", err)
		}
		for _, conn := range []*grpc.ClientConn{hers, r.as(alice)} {
			_, err := say(t.Context(), conn, echo, "again")
			if err = fault.FromStatus(err); fault.KindOf(err) != fault.Denied || fault.Reason(err) != "REFUSED" {
				t.Errorf("a call afterwards: %v, want Denied with reason REFUSED", err)
			}
		}
		send(t, kept, "still here")
		if got, err := receive(kept); err != nil || got != "still here" {
			t.Errorf("somebody else's call: %q, %v", got, err)
		}
		must(t, kept.CloseSend())
		r.refused.Refuse(nil)
		if got, err := say(t.Context(), hers, echo, "back"); err != nil || got != "back" {
			t.Errorf("after it was taken off the list: %q, %v", got, err)
		}
	})
}

// Strangers who connect and say nothing get no further than their share.
func TestDoor_HandshakesAreBounded(t *testing.T) {
	authority, err := coordinatortest.NewAuthority()
	must(t, err)
	dir := t.TempDir()
	must(t, authority.WriteNode(dir, "spiffe://staddle.test/node/node1"))
	d := &door{log: slog.New(slog.DiscardHandler), files: credentials.Files{
		CA: filepath.Join(dir, "ca.crt"), Certificate: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"),
	}}
	var silent []net.Conn
	var handshakes sync.WaitGroup
	for range maxHandshakes {
		theirs, ours := net.Pipe()
		silent = append(silent, theirs)
		handshakes.Go(func() {
			if _, _, err := d.ServerHandshake(ours); err == nil {
				t.Error("a connection without a word was let in")
			}
		})
	}
	await(t, "all are at the door", func() string { return fmt.Sprint(d.shaking.Load()) }, func() bool { return d.shaking.Load() == maxHandshakes })
	theirs, ours := net.Pipe()
	defer theirs.Close()
	if _, _, err := d.ServerHandshake(ours); err == nil || !strings.Contains(err.Error(), "too many at the door") {
		t.Errorf("one more: %v, want it turned away", err)
	}
	for _, conn := range silent {
		must(t, conn.Close())
	}
	handshakes.Wait()
	if n := d.shaking.Load(); n != 0 {
		t.Errorf("%d handshakes are counted after all have ended", n)
	}
}
