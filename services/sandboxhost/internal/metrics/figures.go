package metrics

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// Keys of what tells series apart. They are the names of labels at Prometheus.
const (
	keyNode      = attribute.Key("node")
	keySandbox   = attribute.Key("sandbox")
	keyName      = attribute.Key("sandbox_name")
	keyContainer = attribute.Key("container")
	keyPhase     = attribute.Key("phase")
	keyExport    = attribute.Key("export")
)

// Units, in the notation that OpenTelemetry asks for (UCUM).
const (
	seconds = "s"
	bytes   = "By"
	count   = "" // "1" would be a ratio
)

// figure is one thing that is measured, of a whole that is described by T. Each is a
// series of its own for each node, sandbox or container.
type figure[T any] struct {
	name, unit, help string
	// grows means that it is a counter.
	grows bool
	// of returns the value, and false where it could not be measured.
	of func(T) (float64, bool)
}

// usage are the figures of whatever has a Usage, below a prefix such as staddle.sandbox.
func usage[T any](prefix, whose string, of func(T) *sandboxhostv1.Usage) []figure[T] {
	one := func(name, unit, help string, grows bool, value func(*sandboxhostv1.Usage) *uint64, scale float64) figure[T] {
		return figure[T]{
			name: prefix + "." + name, unit: unit, help: strings.ReplaceAll(help, "%", whose), grows: grows,
			of: func(whole T) (float64, bool) {
				u := of(whole)
				if u == nil {
					return 0, false
				}
				v := value(u)
				if v == nil {
					return 0, false
				}
				return float64(*v) * scale, true
			},
		}
	}
	return []figure[T]{
		one("cpu.time", seconds, "Processor time that % used.", true, func(u *sandboxhostv1.Usage) *uint64 { return u.CpuUsageNanoseconds }, 1e-9),
		one("memory.working_set", bytes, "Memory of % that cannot be given back: without the page cache that nobody has touched lately.", false,
			func(u *sandboxhostv1.Usage) *uint64 { return u.MemoryWorkingSetBytes }, 1),
		one("memory.usage", bytes, "Memory that is counted for %, with the page cache.", false,
			func(u *sandboxhostv1.Usage) *uint64 { return u.MemoryUsageBytes }, 1),
		one("memory.limit", bytes, "Limit on the memory of %; absent where there is none.", false,
			func(u *sandboxhostv1.Usage) *uint64 { return u.MemoryLimitBytes }, 1),
		one("processes", count, "Processes and threads of %.", false, func(u *sandboxhostv1.Usage) *uint64 { return u.Pids }, 1),
		one("io.read", bytes, "Read from disks by %.", true, func(u *sandboxhostv1.Usage) *uint64 { return u.IoReadBytes }, 1),
		one("io.written", bytes, "Written to disks by %.", true, func(u *sandboxhostv1.Usage) *uint64 { return u.IoWrittenBytes }, 1),
		one("oom_kills", count, "Processes of % that the kernel ended for memory.", true, func(u *sandboxhostv1.Usage) *uint64 { return u.OomKills }, 1),
	}
}

// ofNode are the figures of the machine and of all workloads.
func ofNode() []figure[*sandboxhostv1.NodeStats] {
	all := usage("staddle.node", "the whole machine", (*sandboxhostv1.NodeStats).GetMachine)
	all = append(all, usage("staddle.workloads", "all workloads of the node", (*sandboxhostv1.NodeStats).GetWorkloads)...)
	return append(all, figure[*sandboxhostv1.NodeStats]{
		name: "staddle.node.cpus", unit: count, help: "Processors of the machine.",
		of: func(n *sandboxhostv1.NodeStats) (float64, bool) { return float64(n.GetCpus()), n.GetCpus() > 0 },
	})
}

// ofSandbox are the figures of one sandbox.
func ofSandbox() []figure[*sandboxhostv1.SandboxStats] {
	all := usage("staddle.sandbox", "the sandbox", (*sandboxhostv1.SandboxStats).GetUsage)
	traffic := func(name, unit, help string, value func(*sandboxhostv1.NetworkUsage) uint64) figure[*sandboxhostv1.SandboxStats] {
		return figure[*sandboxhostv1.SandboxStats]{
			name: "staddle.sandbox.network." + name, unit: unit, help: help, grows: true,
			of: func(s *sandboxhostv1.SandboxStats) (float64, bool) {
				return float64(value(s.GetNetwork())), s.GetNetwork() != nil
			},
		}
	}
	return append(all,
		traffic("received", bytes, "Received by the sandbox.", (*sandboxhostv1.NetworkUsage).GetReceivedBytes),
		traffic("sent", bytes, "Sent by the sandbox.", (*sandboxhostv1.NetworkUsage).GetSentBytes),
		traffic("received_packets", count, "Packets received by the sandbox.", (*sandboxhostv1.NetworkUsage).GetReceivedPackets),
		traffic("sent_packets", count, "Packets sent by the sandbox.", (*sandboxhostv1.NetworkUsage).GetSentPackets),
		traffic("dropped_packets", count, "Packets lost at the interface of the sandbox, in either direction.", (*sandboxhostv1.NetworkUsage).GetDroppedPackets),
		figure[*sandboxhostv1.SandboxStats]{
			name: "staddle.sandbox.attempts", unit: count, help: "Lives of the sandbox so far, with this one: a restart is a new one.", grows: true,
			of: func(s *sandboxhostv1.SandboxStats) (float64, bool) { return float64(s.GetAttempt()), true },
		})
}

// ofContainer are the figures of one container.
func ofContainer() []figure[*sandboxhostv1.ContainerStats] {
	return usage("staddle.container", "the container", (*sandboxhostv1.ContainerStats).GetUsage)
}
