package command

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/forward"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

func (a *app) portForwardCommand() *cobra.Command {
	var addresses []string
	c := &cobra.Command{
		Use: "port-forward [flags] SANDBOX [LOCAL:]REMOTE...", Short: "Reach ports of a sandbox from this machine",
		Long: `Listen on this machine, and carry each connection to a port inside a sandbox: to its
loopback address, so that programs are reached which listen only there. Without LOCAL
both ports are the same; ":REMOTE" takes a port of this machine that is free. Only
programs of this machine can come, unless --address names another address.

It goes on until it is interrupted, or the sandbox is removed: a connection that fails
is told of, and the next one may succeed. At most 256 are open at a time; more wait.
A node that is not this machine is reached through its gateway.`,
		Example: `  staddle port-forward web 8080:80
  staddle port-forward web :80 5432
  staddle port-forward --address 0.0.0.0 web 8080:80`,
		Args: args(cobra.MinimumNArgs(2)), ValidArgsFunction: a.sandboxNames(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			req := forward.Request{}
			var err error
			if req.Ports, err = forwardsOf(given[1:]); err != nil {
				return err
			}
			if req.Addresses, err = addressesOf(addresses); err != nil {
				return err
			}
			return a.portForward(cmd.Context(), given[0], req)
		},
	}
	c.Flags().StringSliceVar(&addresses, "address", []string{"127.0.0.1"}, "`ADDRESS` of this machine to listen on; may be given several times")
	completeFlags(c, map[string][]cobra.Completion{"address": {"127.0.0.1", "::1", "0.0.0.0", "::"}})
	return c
}

func (a *app) portForward(ctx context.Context, ref string, req forward.Request) error {
	ctx, cancel := a.bounded(ctx, 0)
	defer cancel()
	return a.withInside(ctx, ref, func(ctx context.Context, in *target.Inside, s *sandbox.Sandbox) error {
		var unsaid error
		req.UID = s.UID
		req.Listening = func(from net.Addr, remote uint16) {
			if _, err := fmt.Fprintf(a.out, "Forwarding from %s -> %d\n", from, remote); err != nil {
				unsaid = err
			}
		}
		req.Failed = func(from net.Addr, remote uint16, err error) {
			a.note("connection from %s to port %d of sandbox %s: %v", from, remote, s.Name, err)
		}
		err := forward.Run(ctx, in.Forward, req)
		if unsaid != nil {
			return unsaid
		}
		return explainForward(s, err)
	})
}

// explainForward adds the next step.
func explainForward(s *sandbox.Sandbox, err error) error {
	switch fault.KindOf(err) {
	case fault.NotFound:
		return fault.New(fault.NotFound, "forward ports of sandbox %s: it was removed", s.Name)
	case fault.Conflict:
		return exit.Try(err, "another LOCAL port, or none, as in :80")
	}
	return err
}

// forwardsOf reads ports as "LOCAL:REMOTE", ":REMOTE" or "BOTH".
func forwardsOf(words []string) ([]forward.Port, error) {
	var all []forward.Port
	taken := map[uint16]string{}
	for _, word := range words {
		local, remote, both := strings.Cut(word, ":")
		if !both {
			remote = local
		}
		var p forward.Port
		var ok bool
		if p.Remote, ok = portNumber(remote); !ok {
			return nil, exit.BadUsage("port %q: write LOCAL:REMOTE, :REMOTE or one port for both, each from 1 to 65535", word)
		}
		if local != "" {
			if p.Local, ok = portNumber(local); !ok {
				return nil, exit.BadUsage("port %q: write LOCAL:REMOTE, :REMOTE or one port for both, each from 1 to 65535", word)
			}
			if other, twice := taken[p.Local]; twice {
				return nil, exit.BadUsage("ports %q and %q: both are to be port %d of this machine", other, word, p.Local)
			}
			taken[p.Local] = word
		}
		all = append(all, p)
	}
	return all, nil
}

func portNumber(word string) (uint16, bool) {
	n, err := strconv.ParseUint(word, 10, 16)
	return uint16(n), err == nil && n > 0
}

func addressesOf(words []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, word := range words {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return nil, exit.BadUsage("--address %q: write an IP address of this machine, such as 127.0.0.1 or ::1", word)
		}
		all = append(all, address)
	}
	if len(all) == 0 {
		return nil, exit.BadUsage("--address: there is none")
	}
	return all, nil
}
