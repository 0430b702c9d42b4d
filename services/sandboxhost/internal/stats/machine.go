package stats

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"staddle.internal/kit/boottime"
	"staddle.internal/services/sandboxhost/internal/pressure"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// tick is the unit of processor time in /proc/stat: a hundredth of a second, whatever the
// kernel's own clock (proc(5), USER_HZ).
const tick = 10_000_000

// Machine reads what all of a machine uses, below proc, which is /proc. What cannot be
// read is left out.
func Machine(proc string) *sandboxhostv1.Usage {
	u := &sandboxhostv1.Usage{ReadAt: timestamppb.Now(), ReadSinceBoot: durationpb.New(boottime.Now())}
	if raw, err := os.ReadFile(filepath.Join(proc, "stat")); err == nil {
		u.CpuUsageNanoseconds = busy(string(raw))
	}
	if memory, err := pressure.MemoryOf(proc); err == nil {
		total, used := uint64(memory.Total), uint64(memory.Total-memory.Available) //nolint:gosec // the kernel's figures are not negative
		u.MemoryLimitBytes, u.MemoryWorkingSetBytes = &total, &used
	}
	if tasks, err := pressure.TasksOf(proc); err == nil {
		n := uint64(tasks.Now) //nolint:gosec // a count
		u.Pids = &n
	}
	return u
}

// busy is the processor time of all processors that was not idle: user, nice, system, irq
// and softirq of the first line. Waiting for disks is idle, and guests are users.
func busy(stat string) *uint64 {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return nil
	}
	var all uint64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return nil
		}
		all += n * tick
	}
	return &all
}
