package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"staddle.internal/e2e/bed"
)

// restFor is how long the processor time at rest is watched: the supervisor's is so
// small that a shorter time would show a single waking.
const restFor = 60 * time.Second

// rest measures memory and processor time of all processes while nobody asks for
// anything.
func (b *bench) rest(ctx context.Context, when string, sandboxes int) {
	var pss, anonymous, cpuBefore float64
	processes := b.bed.Processes()
	node := map[int]string{}
	for pid, name := range processes {
		if strings.HasPrefix(name, "staddle-node") {
			node[pid] = name
			p, a := b.memory(pid)
			pss, anonymous = pss+p, anonymous+a
		}
		if strings.HasPrefix(name, "staddle-node") || name == "containerd" {
			cpuBefore += b.cpu(pid)
		}
	}
	supervisorBefore := b.clock(b.supervisor)
	timer := time.NewTimer(restFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		b.t.Fatal(ctx.Err())
	}
	supervisor := b.clock(b.supervisor) - supervisorBefore
	var cpuAfter float64
	for pid, name := range processes {
		if strings.HasPrefix(name, "staddle-node") || name == "containerd" {
			cpuAfter += b.cpu(pid)
		}
	}
	memoryReach, cpuReach := "", ""
	if sandboxes == 0 {
		memoryReach = "<= 90 (anonymous 60), aim 60 (45)"
	} else {
		cpuReach = "<= 2, aim 0.5"
	}
	b.add("memory of node processes (PSS) "+when, "MB", pss, 0, memoryReach)
	b.add("memory of node processes (anonymous) "+when, "MB", anonymous, 0, "")
	b.add("processor time of node processes and containerd "+when, "% of a core", 100*(cpuAfter-cpuBefore)/restFor.Seconds(), 0, cpuReach)
	b.add("processor time of the supervisor "+when, "% of a core", 100*supervisor.Seconds()/restFor.Seconds(), 0, "<= 0.1")
}

// clock is the processor time that a process has used.
func (b *bench) clock(pid int) time.Duration {
	used, err := bed.ProcessorTime(pid)
	b.check(err)
	return used
}

// memory is a process's proportional share and its anonymous part, in MB.
func (b *bench) memory(pid int) (pss, anonymous float64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	b.check(err)
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, err := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "Pss:":
			b.check(err)
			pss = kb / 1000 * 1.024
		case "Anonymous:":
			b.check(err)
			anonymous = kb / 1000 * 1.024
		}
	}
	return pss, anonymous
}

// cpu is the processor time that a process has used, in seconds.
func (b *bench) cpu(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	b.check(err)
	_, after, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(after)
	user, err := strconv.ParseFloat(f[11], 64)
	b.check(err)
	system, err := strconv.ParseFloat(f[12], 64)
	b.check(err)
	const ticks = 100 // per second; the kernel's constant for user space
	return (user + system) / ticks
}
