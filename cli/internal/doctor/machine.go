package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/machine"
	"staddle.internal/cli/internal/output"
)

// Bounds below which a file system is nearly full.
const (
	minFreeBytes   = 512 << 20
	minFreePercent = 5
)

// earliest is a time that no clock that was ever set shows a time before.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// askMachine looks at what every node needs of its machine.
func askMachine(_ context.Context, o Options, p *part) {
	for _, l := range machine.KernelLacks() {
		p.problem("machine", "it lacks "+l.What, l.Remedy)
	}
	p.fact("cgroups: " + machine.CgroupLayout())
	for _, dir := range []string{o.Paths.Var(""), o.Paths.Run()} {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue // nothing was ever started here, which another finding says
		case err != nil:
			p.problem("machine", fmt.Sprintf("look at the file system of %s: %v", dir, err), "mount it, or choose another --root")
			continue
		}
		judgeSpace(p, dir, st)
	}
	judgeClock(p, time.Now())
}

// judgeSpace says whether a file system is nearly full.
func judgeSpace(p *part, dir string, st unix.Statfs_t) {
	free, size := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	if size > 0 && (free < minFreeBytes && free*100 < size*minFreePercent*4 || free*100 < size*minFreePercent) {
		p.problem("machine", fmt.Sprintf("the file system of %s is nearly full: %s of %s are free", dir, output.Bytes(free), output.Bytes(size)),
			"make room; images go with: staddle image rm IMAGE")
	}
	if st.Files > 0 && st.Ffree*100 < st.Files*minFreePercent {
		p.problem("machine", fmt.Sprintf("the file system of %s has room for only %d more files of %d", dir, st.Ffree, st.Files), "remove files")
	}
}

func judgeClock(p *part, now time.Time) {
	if now.Before(earliest) {
		p.problem("machine", fmt.Sprintf("its clock says %s", now.Format(time.RFC3339)), "set the clock: certificates are not valid yet by it")
	}
	var t unix.Timex
	if state, err := unix.Adjtimex(&t); err == nil && state == unix.TIME_ERROR {
		p.note("machine", "its clock is not kept by anything", "run an NTP client, such as chrony")
	}
}

// askContainerd looks whether it can be reached at all; what it says goes through
// sandboxhost.
func askContainerd(ctx context.Context, o Options, p *part) {
	node, err := config.LoadNode(o.Paths.NodeFile())
	if err != nil {
		return // askProcesses says so
	}
	node.Resolve(o.Paths)
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", node.Containerd.Address)
	if err == nil {
		_ = conn.Close()
		return
	}
	do := "staddle component restart containerd, and staddle component logs containerd for the reason"
	if errors.Is(err, os.ErrPermission) {
		do = "run it with sudo"
	}
	p.problem(config.ContainerdName, fmt.Sprintf("it cannot be reached at %s: %v", node.Containerd.Address, cause(err)), do)
}

// cause is what a failed connect says, without the address that is said already.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if sys, ok := errors.AsType[*os.SyscallError](err); ok {
		err = sys.Err
	}
	return err
}
