package containerd

import (
	"fmt"
	"math"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	// defaultPids bounds processes and threads where the spec does not.
	defaultPids = 4096
	// cpuPeriod is the time slice of the processor limit, in microseconds.
	cpuPeriod = 100_000
	// defaultShares is the kernel's own share of the processor.
	defaultShares = 1024
	// openFiles and mostOpenFiles bound open files where the spec does not, as systemd
	// does: few by default, so that old programs that walk through all of them do not
	// hang; those that need more may raise it.
	openFiles, mostOpenFiles = 1024, 524288
)

func resources(in input) *specs.LinuxResources {
	limits := in.container.GetLimits()
	pids := int64(defaultPids)
	if limits != nil && limits.PidsLimit != nil {
		pids = limits.GetPidsLimit()
	}
	r := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}, Devices: deviceRules(in)}
	if limits == nil {
		return r
	}
	if limits.MemoryLimitBytes != nil {
		memory := limits.GetMemoryLimitBytes()
		r.Memory = &specs.LinuxMemory{Limit: &memory}
		if in.able.limitSwap { // no swap beyond the limit unless asked for
			r.Memory.Swap = new(memory + min(limits.GetSwapLimitBytes(), math.MaxInt64-memory))
		}
	}
	if limits.CpuLimitMillicores != nil || limits.CpuShares != nil {
		r.CPU = &specs.LinuxCPU{}
	}
	if limits.CpuLimitMillicores != nil {
		const thousandths = 1000
		quota, period := limits.GetCpuLimitMillicores()*cpuPeriod/thousandths, uint64(cpuPeriod)
		r.CPU.Quota, r.CPU.Period = &quota, &period
	}
	if limits.CpuShares != nil {
		r.CPU.Shares = new(uint64(limits.GetCpuShares()))
	}
	if limits.IoWeight != nil && in.able.weighIO {
		r.BlockIO = &specs.LinuxBlockIO{Weight: new(uint16(limits.GetIoWeight()))}
	}
	return r
}

// rlimits are the limits of its processes. All of them are set, also the default of
// open files: what the runtime happens to have would differ from node to node.
func rlimits(in input) []specs.POSIXRlimit {
	list := []specs.POSIXRlimit{in.able.bounded("nofile", openFiles, mostOpenFiles)}
	for _, u := range in.container.GetUlimits() {
		limit := in.able.bounded(u.GetName(), unlimited(u.GetSoft()), hardOf(u))
		if u.GetName() == "nofile" {
			list[0] = limit
			continue
		}
		list = append(list, limit)
	}
	return list
}

func hardOf(u *resourcev1.Ulimit) uint64 {
	if u.Hard == nil {
		return unlimited(u.GetSoft())
	}
	return unlimited(u.GetHard())
}

// unlimited turns -1 into the kernel's word for no limit.
func unlimited(n int64) uint64 {
	if n < 0 {
		return math.MaxUint64
	}
	return uint64(n)
}

// oomScore is what is asked for, or the least that this machine may give.
func oomScore(in input) *int {
	if in.container.OomScoreAdjust == nil {
		return nil
	}
	score := int(in.container.GetOomScoreAdjust())
	if !in.able.raise {
		score = max(score, in.able.leastOOMScore)
	}
	return &score
}

func sysctls(in input) map[string]string {
	if len(in.sandbox.GetSysctls()) == 0 {
		return nil
	}
	all := map[string]string{}
	for _, s := range in.sandbox.GetSysctls() {
		all[s.GetName()] = s.GetValue()
	}
	return all
}

// lacks lists what a container asks for and this machine cannot give; it runs
// without.
func (in input) lacks() []string {
	var all []string
	limits := in.container.GetLimits()
	if limits.GetSwapLimitBytes() > 0 && !in.able.limitSwap {
		all = append(all, "the kernel does not count swap: swap_limit_bytes has no effect")
	}
	if limits.GetIoWeight() != 0 && !in.able.weighIO {
		all = append(all, "the kernel does not weigh disks: io_weight has no effect")
	}
	for _, u := range in.container.GetUlimits() {
		if most := in.able.most(u.GetName()); hardOf(u) > most {
			all = append(all, fmt.Sprintf("CAP_SYS_RESOURCE is missing on this machine: ulimit %s is at most %d", u.GetName(), most))
		}
	}
	if score := oomScore(in); score != nil && *score > int(in.container.GetOomScoreAdjust()) {
		all = append(all, fmt.Sprintf("CAP_SYS_RESOURCE is missing on this machine: oom_score_adjust is at least %d", *score))
	}
	return all
}

// rlimitType is the runtime's name of a limit.
func rlimitType(name string) string { return "RLIMIT_" + strings.ToUpper(name) }
