package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/logs"
)

// trying is a container that tries operations and says how each went.
func trying(operations ...string) *resourcev1.ContainerSpec {
	return prog(append([]string{"do"}, operations...)...)
}

// said runs a sandbox to the point where its first container has said all, and
// returns the lines.
func (n *node) said(t *testing.T, a engine.Attempt) []string {
	t.Helper()
	n.run(t, a)
	var lines []string
	for line := range strings.Lines(n.output(t, uidOf(a), false, "\nend")) {
		lines = append(lines, strings.TrimRight(line, "\r\n"))
	}
	return lines
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("no line begins with %q in:\n%s", w, strings.Join(got, "\n"))
		}
	}
}

func TestEngine_MountsOfEveryKind(t *testing.T) {
	n := newNode(t)
	allowed := t.TempDir()
	must(t, os.WriteFile(filepath.Join(allowed, "file"), []byte("of the node"), 0o644))
	n.engine.cfg.Rules.HostPaths = []string{allowed}
	one := trying("read:/etc/app/conf", "stat:/etc/app/conf", "write:/etc/app/conf", "stat:/mem", "size:/mem", "write:/mem/x", "copy:/mem/prog", "run:/mem/prog",
		"write:/scratch/x", "stat:/scratch", "read:/host/file", "write:/host/new", "write:/readonly/new", "size:/dev/shm", "read:/etc/hosts")
	one.User = "app"
	one.Tmpfs = []*resourcev1.TmpfsMount{{Path: "/mem", SizeLimitBytes: new(int64(8 << 20)), Mode: "0777"}}
	one.Files = []*resourcev1.ConfigFile{{Path: "/etc/app/conf", Content: &resourcev1.ConfigFile_Text{Text: "a = 1\n"}, Mode: "0400"}}
	one.Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/scratch"}}
	one.HostMounts = []*resourcev1.HostMount{{HostPath: allowed, Path: "/host"}, {HostPath: allowed, Path: "/readonly", ReadOnly: true}}
	must(t, os.Chmod(allowed, 0o777))
	other := prog("sleep")
	other.Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/shared", ReadOnly: true}}
	a := attempt(t, pushed(t), one, other)
	a.Wish.Spec.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "work"}}
	a.Wish.Spec.ShmSizeBytes = new(int64(1 << 20))
	a.Wish.Spec.Hosts = []*resourcev1.HostEntry{{Address: "10.1.2.3", Names: []string{"db", "db.lan"}}}
	lines := n.said(t, a)
	wantLines(t, lines,
		`read:/etc/app/conf="a = 1\n"`, "stat:/etc/app/conf=mode=400 uid=1000 gid=1000", "write:/etc/app/conf=error",
		"stat:/mem=mode=777", "size:/mem=8388608", "write:/mem/x=", "copy:/mem/prog=", "run:/mem/prog=error fork/exec /mem/prog: permission denied",
		"write:/scratch/x=", "stat:/scratch=mode=777 uid=0 gid=0", `read:/host/file="of the node"`, "write:/host/new=", "write:/readonly/new=error", "size:/dev/shm=1048576")
	if text := strings.Join(lines, "\n"); !strings.Contains(text, `10.1.2.3\tdb db.lan\n`) {
		t.Errorf("the names of the spec are not in:\n%s", text)
	}
	for _, file := range []string{"write:/mem/x=error", "write:/scratch/x=error", "write:/host/new=error"} {
		if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, file) }) {
			t.Errorf("got %s…", file)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(n.engine.scratch(uidOf(a)), "work", "x")); err != nil || string(raw) != "written" {
		t.Errorf("scratch volume: got %q, %v", raw, err)
	}
	n.clear(t, uidOf(a))
	if raw, err := os.ReadFile(filepath.Join(allowed, "new")); err != nil || string(raw) != "written" {
		t.Errorf("what was written to the node's folder: got %q, %v", raw, err)
	}
	if _, err := os.Lstat(n.engine.scratch(uidOf(a))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("scratch volumes are left: %v", err)
	}
}

// A scratch volume is there again after all else of the sandbox was given back.
func TestEngine_ScratchOutlivesAttempts(t *testing.T) {
	n := newNode(t)
	spec := trying("read:/scratch/x", "write:/scratch/x")
	spec.Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/scratch"}}
	a := attempt(t, pushed(t), spec)
	a.Wish.Spec.ScratchVolumes = []*resourcev1.ScratchVolume{{Name: "work"}}
	wantLines(t, n.said(t, a), "read:/scratch/x=error")
	must(t, n.engine.signal(t.Context(), engine.ContainerID(uidOf(a), "a", 1), syscall.SIGKILL))
	n.awaitExit(t, uidOf(a))
	must(t, n.engine.remove(t.Context(), engine.ContainerID(uidOf(a), "a", 1)))
	must(t, n.engine.release(uidOf(a)))
	if o, err := n.engine.Observe(t.Context(), uidOf(a)); err != nil || !o.Empty() || !o.Logs {
		t.Errorf("got %+v, %v, want nothing but what it wrote", o, err)
	}
	must(t, n.engine.logs.Remove(uidOf(a), logs.Name{}))
	wantLines(t, n.said(t, a), `read:/scratch/x="written"`)
	n.clear(t, uidOf(a))
}

// Nothing of the node is reached through a link in a folder that it allows, and
// nothing of it is removed with a sandbox that was never made whole.
func TestEngine_HostPathsStayInside(t *testing.T) {
	n := newNode(t)
	allowed, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	must(t, os.Symlink(outside, filepath.Join(allowed, "link")))
	n.engine.cfg.Rules.HostPaths = []string{allowed}
	for path, reason := range map[string]string{
		filepath.Join(allowed, "link"): "HOST_PATH_ESCAPES", filepath.Join(allowed, "none"): "HOST_PATH_MISSING", outside: "HOST_PATH_NOT_ALLOWED",
	} {
		spec := prog("sleep")
		spec.HostMounts = []*resourcev1.HostMount{{HostPath: allowed, Path: "/first"}, {HostPath: path, Path: "/second"}}
		a := attempt(t, pushed(t), spec)
		var err error
		for _, step := range []engine.Step{engine.StepImages, engine.StepNamespaces, engine.StepNetwork, engine.StepCreate} {
			if err = n.engine.Do(t.Context(), a, engine.Action{Step: step, Container: "a"}); err != nil {
				break
			}
		}
		if fault.Reason(err) != reason {
			t.Errorf("%s: got %v (%s), want %s", path, err, fault.Reason(err), reason)
		}
		n.clear(t, uidOf(a))
	}
	for _, file := range []string{filepath.Join(outside, "secret"), filepath.Join(allowed, "link")} {
		if _, err := os.Lstat(file); err != nil {
			t.Errorf("removed with the sandbox: %v", err)
		}
	}
}

func TestEngine_LimitsAndIdentity(t *testing.T) {
	n := newNode(t)
	spec := prog("show")
	spec.User, spec.Groups = "app", []string{"3000", "more"}
	spec.Ulimits = []*resourcev1.Ulimit{{Name: "nofile", Soft: 100, Hard: new(int64(200))}, {Name: "core", Soft: 0}}
	spec.OomScoreAdjust = new(int32(321))
	spec.Limits = &resourcev1.ResourceLimits{
		CpuShares: new(int64(512)), IoWeight: new(int64(300)), MemoryLimitBytes: new(int64(64 << 20)), SwapLimitBytes: new(int64(0)),
	}
	spec.Env = []*resourcev1.EnvironmentVariable{
		{Name: "NAME", From: resourcev1.SandboxField_SANDBOX_FIELD_NAME}, {Name: "SANDBOX", From: resourcev1.SandboxField_SANDBOX_FIELD_UID},
		{Name: "NODE", From: resourcev1.SandboxField_SANDBOX_FIELD_NODE}, {Name: "ATTEMPT", From: resourcev1.SandboxField_SANDBOX_FIELD_ATTEMPT},
		{Name: "ADDRESS", From: resourcev1.SandboxField_SANDBOX_FIELD_ADDRESS}, {Name: "CONTAINER", From: resourcev1.SandboxField_SANDBOX_FIELD_CONTAINER},
		{Name: "HOST", From: resourcev1.SandboxField_SANDBOX_FIELD_HOSTNAME},
	}
	a := attempt(t, pushed(t), spec)
	lines := n.said(t, a)
	o := n.await(t, uidOf(a), "running", func(o engine.Observed) bool { return len(o.Containers) == 1 && o.Containers[0].PID != 0 })
	wantLines(t, lines, "env:NAME=web", "env:SANDBOX="+string(uidOf(a)), "env:NODE=node1", "env:ATTEMPT=1", "env:CONTAINER=a", "env:HOST=web",
		fmt.Sprintf("env:ADDRESS=%s", o.Addresses[0]), "/proc/self/oom_score_adj:321", "/proc/self/status:NoNewPrivs:\t1", "/proc/self/status:Seccomp:\t2",
		"/proc/self/status:Groups:\t2000 3000", "/proc/self/status:CapBnd:\t00000000000405fb", "/proc/self/status:CapEff:\t0000000000000000")
	for _, line := range lines { // a Go program raises its soft limit of open files itself
		rest, ok := strings.CutPrefix(line, "/proc/self/limits:Max open files")
		if fields := strings.Fields(rest); ok && (len(fields) < 2 || fields[1] != "200") {
			t.Errorf("open files: got %v, want at most 200", fields)
		}
		rest, ok = strings.CutPrefix(line, "/proc/self/limits:Max core file size")
		if fields := strings.Fields(rest); ok && (len(fields) < 2 || fields[0] != "0" || fields[1] != "0") {
			t.Errorf("core files: got %v, want none", fields)
		}
	}
	shares, err := os.ReadFile("/sys/fs/cgroup/cpu" + n.engine.group(uidOf(a).Lower(), "a") + "/cpu.shares")
	if err != nil || strings.TrimSpace(string(shares)) != "512" {
		t.Errorf("cpu shares: got %q, %v", shares, err)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_SysctlsAndProfiles(t *testing.T) {
	n := newNode(t)
	open := trying("read:/proc/sys/net/core/somaxconn", "read:/proc/sys/kernel/msgmax", "write:/proc/sys/kernel/msgmax", "write:/x", "unshare:", "list:/dev", "read:/proc/interrupts")
	a := attempt(t, pushed(t), open)
	a.Wish.Spec.Sysctls = []*resourcev1.Sysctl{{Name: "net.core.somaxconn", Value: "77"}, {Name: "kernel.msgmax", Value: "9000"}}
	lines := n.said(t, a)
	wantLines(t, lines, `read:/proc/sys/net/core/somaxconn="77\n"`, `read:/proc/sys/kernel/msgmax="9000\n"`, "write:/proc/sys/kernel/msgmax=error", "write:/x=",
		"unshare:=error operation not permitted", `read:/proc/interrupts=""`)
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "write:/x=error") || strings.Contains(l, "loop0") }) {
		t.Errorf("by default: got %q", lines)
	}
	n.clear(t, uidOf(a))

	n.engine.cfg.Rules.Privileged = true
	all := trying("write:/proc/sys/kernel/msgmax", "list:/dev", "unshare:")
	all.Security = &resourcev1.SecuritySpec{Privileged: true}
	a = attempt(t, pushed(t), all)
	lines = n.said(t, a)
	// The kernel takes neither the text for a number nor a program of many threads
	// into a new user namespace; that it says so means that nothing else was in the way.
	wantLines(t, lines, "unshare:=error invalid argument", "write:/proc/sys/kernel/msgmax=error write /proc/sys/kernel/msgmax: invalid argument")
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "list:/dev=") && strings.Contains(l, "loop-control") }) {
		t.Errorf("privileged: got %q, want the devices of the node", lines)
	}
	n.clear(t, uidOf(a))
}

// The restricted profile is one word: no capability in any set, a read-only root, and not
// root; an image that would run as root is refused, and leaves nothing.
func TestEngine_RestrictedHasNoRightAndIsNotRoot(t *testing.T) {
	n := newNode(t)
	security := &resourcev1.SecuritySpec{Profile: restricted}
	tight := trying("read:/proc/self/status", "write:/x", "write:/tmp/x")
	tight.User, tight.Security = "app", security
	tight.Tmpfs = []*resourcev1.TmpfsMount{{Path: "/tmp"}}
	a := attempt(t, pushed(t), tight)
	lines := n.said(t, a)
	wantLines(t, lines, "write:/x=error open /x: read-only file system")
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "write:/tmp/x=error") }) {
		t.Errorf("restricted: got %q", lines)
	}
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "read:/proc/self/status=") })
	if at < 0 {
		t.Fatalf("got %q, want what the kernel says of the process", lines)
	}
	for _, want := range []string{
		`CapInh:\t0000000000000000\n`, `CapPrm:\t0000000000000000\n`, `CapEff:\t0000000000000000\n`, `CapBnd:\t0000000000000000\n`,
		`CapAmb:\t0000000000000000\n`, `NoNewPrivs:\t1\n`, `Seccomp:\t2\n`, `Uid:\t1000\t1000\t1000\t1000\n`,
	} {
		if !strings.Contains(lines[at], want) {
			t.Errorf("of the process the kernel says %s, want %s in it", lines[at], want)
		}
	}
	n.clear(t, uidOf(a))

	root := prog("sleep") // its image names no user
	root.Security = security
	a = attempt(t, pushed(t), root)
	for _, action := range []engine.Action{{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork}} {
		must(t, n.engine.Do(t.Context(), a, action))
	}
	err := n.engine.Do(t.Context(), a, engine.Action{Step: engine.StepCreate, Container: "a"})
	if !errors.Is(err, fault.Invalid) || fault.Reason(err) != "RUNS_AS_ROOT" || !strings.Contains(err.Error(), "set user to another") {
		t.Errorf("an image that runs as root: got %v, want RUNS_AS_ROOT and what to set", err)
	}
	n.clear(t, uidOf(a))
}

func TestEngine_DeviceOfTheNode(t *testing.T) {
	n := newNode(t)
	n.engine.cfg.Rules.Devices = []string{"/dev/fuse"}
	spec := trying("stat:/dev/fuse", "read:/dev/loop-control")
	spec.Security = &resourcev1.SecuritySpec{Devices: []*resourcev1.DeviceAccess{{Path: "/dev/fuse"}}}
	a := attempt(t, pushed(t), spec)
	wantLines(t, n.said(t, a), "stat:/dev/fuse=mode=", "read:/dev/loop-control=error open /dev/loop-control: no such file")
	n.clear(t, uidOf(a))
	spec = prog("sleep")
	spec.Security = &resourcev1.SecuritySpec{Devices: []*resourcev1.DeviceAccess{{Path: "/dev/loop-control"}}}
	a = attempt(t, pushed(t), spec)
	err := n.engine.Do(t.Context(), a, engine.Action{Step: engine.StepImages})
	if fault.Reason(err) != "DEVICE_NOT_ALLOWED" {
		t.Errorf("another device: got %v", err)
	}
}

// A terminal has one stream, and standard input that is kept open is not at its end.
func TestEngine_TerminalAndInput(t *testing.T) {
	n := newNode(t)
	spec := trying("terminal:")
	spec.Tty = true
	a := attempt(t, pushed(t), spec)
	wantLines(t, n.said(t, a), "terminal:=true")
	n.clear(t, uidOf(a))

	for _, kept := range []bool{false, true} {
		spec := prog("read")
		spec.Stdin = kept
		a := attempt(t, pushed(t), spec, prog("exit-after", "300", "0"))
		n.run(t, a)
		if !kept {
			n.awaitExit(t, uidOf(a))
			n.clear(t, uidOf(a))
			continue
		}
		o := n.await(t, uidOf(a), "the second ended", func(o engine.Observed) bool { return len(o.Containers) == 2 && o.Containers[1].State == engine.Exited })
		if o.Containers[0].State != engine.Running {
			t.Errorf("standard input is at its end: %+v", o.Containers[0])
		}
		pipe, err := os.OpenFile(n.engine.stdin(n.engine.known(o.Containers[0].ID)), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pipe.WriteString("hello"); err != nil {
			t.Error(err)
		}
		must(t, pipe.Close())
		n.clear(t, uidOf(a))
	}
}

// TestEngine_NothingOfTheNodeIsReached is field case SCY-2: no working directory and
// no descriptor leads out of a container.
func TestEngine_NothingOfTheNodeIsReached(t *testing.T) {
	n := newNode(t)
	ref := pushed(t)
	for fd := 3; fd <= 30; fd += 5 {
		spec := prog("show")
		spec.WorkingDir = fmt.Sprintf("/proc/self/fd/%d/../../../..", fd)
		if fd%2 == 0 {
			spec.WorkingDir = fmt.Sprintf("/proc/self/fd/%d", fd)
		}
		a := attempt(t, ref, spec)
		var err error
		for _, action := range []engine.Action{
			{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork},
			{Step: engine.StepCreate, Container: "a"}, {Step: engine.StepStart, Container: "a"},
		} {
			if err = n.engine.Do(t.Context(), a, action); err != nil {
				break
			}
		}
		if err == nil {
			for line := range strings.Lines(n.output(t, uidOf(a), false, "end\n")) {
				if dir, ok := strings.CutPrefix(line, "cwd="); ok && strings.TrimSpace(dir) != "/" && !strings.HasPrefix(dir, "/proc") {
					t.Errorf("working directory %s led to %s", spec.WorkingDir, dir)
				}
			}
		}
		n.clear(t, uidOf(a))
	}
	a := attempt(t, ref, prog("show"))
	var open []string
	for _, line := range n.said(t, a) {
		if fd, ok := strings.CutPrefix(line, "fd:"); ok && !strings.Contains(fd, "/proc/") && !strings.Contains(fd, "anon_inode") &&
			!strings.Contains(fd, "/sys/fs/cgroup/") { // which a Go program opens itself
			open = append(open, fd)
		}
	}
	for _, fd := range open {
		if number, _, _ := strings.Cut(fd, ":"); number != "0" && number != "1" && number != "2" {
			t.Errorf("the container has %s open", fd)
		}
	}
	if len(open) < 3 {
		t.Errorf("got descriptors %q, want 0, 1 and 2", open)
	}
	n.clear(t, uidOf(a))
}

// TestEngine_SCY5_StartsAtOnceAreApart starts 40, for a hundred take two cores more than a
// minute: what one sandbox was given never shows in another that starts at the same time.
func TestEngine_SCY5_StartsAtOnceAreApart(t *testing.T) {
	n := newNode(t)
	ref := pushed(t)
	const count = 40
	all := make([]engine.Attempt, count)
	errs := make(chan error, count)
	for i := range count {
		spec := prog("show", fmt.Sprint("argument-", i))
		spec.Env = []*resourcev1.EnvironmentVariable{{Name: "MINE", Value: fmt.Sprint("value-", i)}, {Name: fmt.Sprint("ONLY_", i), Value: "x"}}
		spec.Ulimits = []*resourcev1.Ulimit{{Name: "nofile", Soft: int64(100 + i)}}
		spec.Limits = &resourcev1.ResourceLimits{PidsLimit: new(int64(100 + i))}
		spec.Tmpfs = []*resourcev1.TmpfsMount{{Path: fmt.Sprint("/mem-", i), SizeLimitBytes: new(int64(1 << 20))}}
		if i%2 == 1 {
			spec.User = "app"
		}
		all[i] = attempt(t, ref, spec)
		go func() { // waited for below
			var err error
			for _, action := range []engine.Action{
				{Step: engine.StepImages}, {Step: engine.StepNamespaces}, {Step: engine.StepNetwork},
				{Step: engine.StepCreate, Container: "a"}, {Step: engine.StepStart, Container: "a"},
			} {
				if err == nil {
					err = n.doAgain(t, all[i], action)
				}
			}
			errs <- err
		}()
	}
	for range count {
		must(t, <-errs)
	}
	for i, a := range all {
		text := n.output(t, uidOf(a), false, "end\n")
		if got, want := n.setting(t, n.engine.group(uidOf(a).Lower(), "a"), "pids.max"), fmt.Sprint(100+i); got != want {
			t.Errorf("sandbox %d may have %s processes, want %s", i, got, want)
		}
		if strings.Count(text, " /mem-") != 1 || !strings.Contains(text, fmt.Sprintf(" /mem-%d tmpfs", i)) ||
			!regexp.MustCompile(fmt.Sprintf(`Max open files +%d +%d `, 100+i, 100+i)).MatchString(text) ||
			strings.Count(text, "env:ONLY_") != 1 || !strings.Contains(text, fmt.Sprintf("env:ONLY_%d=x", i)) || !strings.Contains(text, fmt.Sprintf("env:MINE=value-%d\n", i)) ||
			!strings.Contains(text, fmt.Sprintf("argument-%d\n", i)) || !strings.Contains(text, fmt.Sprintf("uid=%d\n", 1000*(i%2))) {
			t.Errorf("sandbox %d sees:\n%s", i, text)
		}
		n.clear(t, uidOf(a))
	}
}

// doAgain does an action until it is done, as a keeper does, for a crowd of starts may
// take longer than one may.
func (n *node) doAgain(t *testing.T, a engine.Attempt, action engine.Action) (err error) {
	const tries = 5
	for range tries {
		if err = n.engine.Do(t.Context(), a, action); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s, %d times: %w", action.Step, tries, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
