// Package hostport finds out which program of the node listens on a port. It only looks:
// at the kernel's tables of sockets and of addresses, and at the open files of processes.
package hostport

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Networks of ports.
const (
	TCP = "tcp"
	UDP = "udp"
)

// States of sockets in the kernel's tables (include/net/tcp_states.h): one that listens
// has no peer.
const (
	stateListen = 0x0A // of TCP
	stateClosed = 0x07 // of UDP without a peer
)

// socket is a line of the kernel's tables that somebody can be reached at.
type socket struct {
	at    netip.AddrPort
	inode uint64
}

// Owner says who listens so that at cannot be had: on the same port, and on the same
// address or on all. It is "" if nobody does.
func Owner(network string, at netip.AddrPort) (string, error) {
	for _, table := range []string{network, network + "6"} {
		sockets, err := listening("/proc/self/net/"+table, network)
		if err != nil {
			return "", fmt.Errorf("look who listens on %s %s: %w", network, at, err)
		}
		for _, s := range sockets {
			if overlaps(s.at, at) {
				return holder("/proc", s.inode), nil
			}
		}
	}
	return "", nil
}

// overlaps says whether two sockets could not both listen.
func overlaps(a, b netip.AddrPort) bool {
	one, two := a.Addr().Unmap(), b.Addr().Unmap()
	return a.Port() == b.Port() && (one == two || one.IsUnspecified() || two.IsUnspecified())
}

func listening(path, network string) (all []socket, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without IPv6
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return parse(f, network)
}

// parse reads a table of sockets. Each line has its number, both ends, the state, and as
// the tenth field the inode.
func parse(r io.Reader, network string) ([]socket, error) {
	want := uint64(stateListen)
	if network == UDP {
		want = stateClosed
	}
	var all []socket
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !strings.HasSuffix(fields[0], ":") {
			continue // the head
		}
		state, err := strconv.ParseUint(fields[3], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("state of socket %q: %w", lines.Text(), err)
		}
		if state != want {
			continue
		}
		at, err := parseEnd(fields[1])
		if err != nil {
			return nil, fmt.Errorf("address of socket %q: %w", lines.Text(), err)
		}
		inode, err := strconv.ParseUint(fields[9], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("inode of socket %q: %w", lines.Text(), err)
		}
		all = append(all, socket{at: at, inode: inode})
	}
	return all, lines.Err()
}

// parseEnd reads an address, which the kernel writes as words of the machine, and a port.
func parseEnd(text string) (netip.AddrPort, error) {
	address, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	if !ok || err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no end of a socket", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is no end of a socket", text)
	}
	return netip.AddrPortFrom(addr, uint16(number)), nil
}

// holder names a process that has a socket open.
func holder(proc string, inode uint64) string {
	want := "socket:[" + strconv.FormatUint(inode, 10) + "]"
	pids, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return unknownHolder
	}
	for _, dir := range pids {
		files, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it ended meanwhile
		}
		for _, f := range files {
			if to, err := os.Readlink(filepath.Join(dir, "fd", f.Name())); err == nil && to == want {
				return named(dir)
			}
		}
	}
	return unknownHolder
}

// unknownHolder has a socket that no process of ours to see has: the kernel itself.
const unknownHolder = "the kernel, or a process that ended"

func named(dir string) string {
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return "process " + filepath.Base(dir)
	}
	return fmt.Sprintf("%q (process %s)", strings.TrimSpace(string(name)), filepath.Base(dir))
}
