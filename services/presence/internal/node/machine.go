package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	// maxSandboxes is how many sandboxes a node takes.
	maxSandboxes = 500
	// maxAddresses bounds the addresses that are told.
	maxAddresses = 16
)

// capacity is what the machine has.
func capacity() (*resourcev1.NodeCapacity, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read memory size: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] != "MemTotal:" || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read memory size: %w", err)
		}
		return &resourcev1.NodeCapacity{
			MemoryBytes: kib << 10, CpuMillicores: int64(runtime.NumCPU()) * 1000, Sandboxes: maxSandboxes,
		}, nil
	}
	return nil, fmt.Errorf("read memory size: no MemTotal in /proc/meminfo: %w", lines.Err())
}

// addresses are the machine's own global addresses, in a stable order. A device
// that cannot be asked has none to tell.
func addresses(bridge string) []string {
	devices, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var out []string
	for _, d := range devices {
		if d.Name == bridge || d.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := d.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, a := range addrs {
			if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.IsGlobalUnicast() {
				out = append(out, ip.String())
			}
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxAddresses)]
}
