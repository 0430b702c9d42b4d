package containerd

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

const (
	restricted = resourcev1.SecurityProfile_SECURITY_PROFILE_RESTRICTED
	unconfined = resourcev1.Confinement_CONFINEMENT_UNCONFINED
)

func built(t *testing.T, change func(in *input)) *specs.Spec {
	t.Helper()
	in := sample()
	change(&in)
	s, err := build(in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func secured(t *testing.T, security *resourcev1.SecuritySpec) *specs.Spec {
	t.Helper()
	return built(t, func(in *input) { in.container.Security = security })
}

func TestBuild_Capabilities(t *testing.T) {
	defaults := "CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETGID SETPCAP SETUID SYS_CHROOT"
	tests := []struct {
		name     string
		security *resourcev1.SecuritySpec
		want     string
	}{
		{"nothing said", nil, defaults},
		{"one less", &resourcev1.SecuritySpec{DropCapabilities: []string{"CHOWN", "NET_RAW"}}, strings.TrimPrefix(defaults, "CHOWN ")},
		{"one more", &resourcev1.SecuritySpec{AddCapabilities: []string{"NET_RAW", "KILL"}}, defaults + " NET_RAW"},
		{"one only", &resourcev1.SecuritySpec{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"CHOWN"}}, "CHOWN"},
		{"restricted", &resourcev1.SecuritySpec{Profile: restricted}, ""},
		{"privileged: what the machine has", &resourcev1.SecuritySpec{Privileged: true}, "CHOWN SYS_ADMIN"},
		{"privileged with one less", &resourcev1.SecuritySpec{Privileged: true, DropCapabilities: []string{"SYS_ADMIN"}}, "CHOWN"},
	}
	for _, tt := range tests {
		c := secured(t, tt.security).Process.Capabilities
		for set, got := range map[string][]string{"bounding": c.Bounding, "permitted": c.Permitted, "effective": c.Effective} {
			if text := strings.ReplaceAll(strings.Join(got, " "), "CAP_", ""); text != tt.want {
				t.Errorf("%s: %s: got %q, want %q", tt.name, set, text, tt.want)
			}
		}
		if len(c.Ambient)+len(c.Inheritable) > 0 {
			t.Errorf("%s: got %+v, want none that outlives a program", tt.name, c)
		}
	}
}

func TestBuild_Confinement(t *testing.T) {
	s := secured(t, nil)
	if !s.Process.NoNewPrivileges || s.Root.Readonly || s.Linux.Seccomp == nil || len(s.Linux.MaskedPaths) == 0 || len(s.Linux.ReadonlyPaths) == 0 {
		t.Errorf("by default: got %+v %+v", s.Process, s.Root)
	}
	if s := secured(t, &resourcev1.SecuritySpec{Profile: restricted}); !s.Root.Readonly || !s.Process.NoNewPrivileges || s.Linux.Seccomp == nil {
		t.Errorf("restricted: got %+v", s.Root)
	}
	if s := secured(t, &resourcev1.SecuritySpec{ReadOnlyRoot: true}); !s.Root.Readonly {
		t.Error("read-only root: it can be written")
	}
	if s := secured(t, &resourcev1.SecuritySpec{Seccomp: unconfined}); s.Linux.Seccomp != nil || !s.Process.NoNewPrivileges {
		t.Errorf("without seccomp: got %+v", s.Linux.Seccomp)
	}
	s = secured(t, &resourcev1.SecuritySpec{Privileged: true})
	if s.Process.NoNewPrivileges || s.Linux.Seccomp != nil || len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) > 0 ||
		!s.Linux.Resources.Devices[0].Allow || !slices.Contains(mountAt(t, s, "/sys").Options, "rw") {
		t.Errorf("privileged: got %+v %+v", s.Process, s.Linux)
	}
	able := func(security *resourcev1.SecuritySpec) string {
		return built(t, func(in *input) { in.able.apparmor, in.container.Security = "ours", security }).Process.ApparmorProfile
	}
	if got := able(nil); got != "ours" {
		t.Errorf("AppArmor: got %q, want the profile of the machine", got)
	}
	for _, s := range []*resourcev1.SecuritySpec{{Apparmor: unconfined}, {Privileged: true}} {
		if got := able(s); got != "" {
			t.Errorf("%v: got AppArmor profile %q, want none", s, got)
		}
	}
}

func TestBuild_NoRoot(t *testing.T) {
	for _, security := range []*resourcev1.SecuritySpec{{Profile: restricted}, {RunAsNonRoot: true}} {
		in := sample()
		in.container.Security, in.user = security, specs.User{}
		if _, err := build(in); !errors.Is(err, fault.Invalid) || fault.Reason(err) != "RUNS_AS_ROOT" {
			t.Errorf("%v: got %v, want RUNS_AS_ROOT", security, err)
		}
	}
}

func TestBuild_Devices(t *testing.T) {
	s := built(t, func(in *input) {
		in.container.Security = &resourcev1.SecuritySpec{Devices: []*resourcev1.DeviceAccess{{Path: "/dev/fuse"}, {Path: "/dev/loop0", ReadOnly: true}}}
		in.devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}, {Path: "/dev/loop0", Type: "b", Major: 7}}
	})
	rules := s.Linux.Resources.Devices
	if len(s.Linux.Devices) != 2 || len(rules) != 3 || rules[0].Allow || !rules[1].Allow || rules[1].Access != "rw" || *rules[1].Major != 10 ||
		rules[2].Access != "r" || rules[2].Type != "b" {
		t.Errorf("got %+v %+v", s.Linux.Devices, rules)
	}
}

func TestBuild_Limits(t *testing.T) {
	limits := &resourcev1.ResourceLimits{
		MemoryLimitBytes: new(int64(64 << 20)), SwapLimitBytes: new(int64(16 << 20)), CpuShares: new(int64(512)), IoWeight: new(int64(300)),
	}
	ulimits := []*resourcev1.Ulimit{
		{Name: "nofile", Soft: 5000, Hard: new(int64(50000))}, {Name: "core", Soft: 0}, {Name: "memlock", Soft: -1},
	}
	set := func(in *input) {
		in.container.Limits, in.container.Ulimits, in.container.OomScoreAdjust = limits, ulimits, new(int32(-300))
	}
	s := built(t, set)
	r := s.Linux.Resources
	if *r.Memory.Swap != 80<<20 || *r.CPU.Shares != 512 || r.CPU.Quota != nil || *r.BlockIO.Weight != 300 || *s.Process.OOMScoreAdj != -300 {
		t.Errorf("got %+v %+v %+v %v", r.Memory, r.CPU, r.BlockIO, *s.Process.OOMScoreAdj)
	}
	want := []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: 5000, Hard: 50000}, {Type: "RLIMIT_CORE"}, {Type: "RLIMIT_MEMLOCK", Soft: math.MaxUint64, Hard: math.MaxUint64},
	}
	if !slices.Equal(s.Process.Rlimits, want) {
		t.Errorf("got %+v, want %+v", s.Process.Rlimits, want)
	}

	poor := func(in *input) {
		set(in)
		in.able = abilities{hard: map[string]uint64{"nofile": 20000, "memlock": 8 << 20}}
	}
	s = built(t, poor)
	r = s.Linux.Resources
	want = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 5000, Hard: 20000}, {Type: "RLIMIT_CORE"}, {Type: "RLIMIT_MEMLOCK", Soft: 8 << 20, Hard: 8 << 20}}
	if r.Memory.Swap != nil || r.BlockIO != nil || *s.Process.OOMScoreAdj != 0 || !slices.Equal(s.Process.Rlimits, want) {
		t.Errorf("on a machine that can less: got %+v %+v %v %+v", r.Memory, r.BlockIO, *s.Process.OOMScoreAdj, s.Process.Rlimits)
	}
	in := sample()
	poor(&in)
	if lacks := in.lacks(); len(lacks) != 5 {
		t.Errorf("got %q, want swap, weight, two ulimits and the score", lacks)
	}
	in = sample()
	if lacks := in.lacks(); len(lacks) != 0 {
		t.Errorf("nothing asked that cannot be had: got %q", lacks)
	}
}

// TestBuild_OpenFiles is field case LIF-7: what the spec does not say is a value of
// ours, never what the runtime happened to be started with.
func TestBuild_OpenFiles(t *testing.T) {
	limit := func(raise bool) specs.POSIXRlimit {
		return built(t, func(in *input) { in.able.raise = raise }).Process.Rlimits[0]
	}
	if got, want := limit(true), (specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 524288}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := limit(false), (specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 20000}); got != want {
		t.Errorf("where limits cannot be raised: got %+v, want %+v", got, want)
	}
}

func mountAt(t *testing.T, s *specs.Spec, path string) specs.Mount {
	t.Helper()
	var found []specs.Mount
	for _, m := range s.Mounts {
		if m.Destination == path {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d mounts at %s, want one: %+v", len(found), path, s.Mounts)
	}
	return found[0]
}

func TestBuild_Mounts(t *testing.T) {
	s := built(t, func(in *input) {
		c := in.container
		c.Tmpfs = []*resourcev1.TmpfsMount{{Path: "/tmp"}, {Path: "/cache/fast", SizeLimitBytes: new(int64(4096)), Mode: "0700", Executable: true}}
		c.Files = []*resourcev1.ConfigFile{{Path: "/etc/app.conf"}, {Path: "/etc/hosts"}}
		c.Scratch = []*resourcev1.ScratchMount{{Volume: "work", Path: "/cache"}, {Volume: "work", Path: "/seen", ReadOnly: true}}
		c.HostMounts = []*resourcev1.HostMount{{HostPath: "/srv/a", Path: "/a"}, {HostPath: "/srv/b", Path: "/b", ReadOnly: true}}
	})
	for path, want := range map[string]string{
		"/tmp":          "tmpfs tmpfs nosuid,nodev,size=67108864,mode=1777,noexec",
		"/cache/fast":   "tmpfs tmpfs nosuid,nodev,size=4096,mode=0700",
		"/etc/app.conf": "bind /run/files/0 rbind,rprivate,ro,nosuid,nodev",
		"/etc/hosts":    "bind /run/files/1 rbind,rprivate,ro,nosuid,nodev",
		"/etc/hostname": "bind /run/etc/hostname rbind,rprivate,ro,nosuid,noexec,nodev",
		"/cache":        "bind /var/scratch/work rbind,rprivate,rw,nosuid,nodev",
		"/seen":         "bind /var/scratch/work rbind,rprivate,ro,nosuid,nodev",
		"/a":            "bind /run/binds/0 rbind,rprivate,rw,nosuid,nodev",
		"/b":            "bind /run/binds/1 rbind,rprivate,ro,nosuid,nodev,rro",
	} {
		m := mountAt(t, s, path)
		if got := m.Type + " " + m.Source + " " + strings.Join(m.Options, ","); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	at := func(path string) int {
		return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == path })
	}
	if at("/cache") > at("/cache/fast") || at("/dev") > at("/dev/shm") {
		t.Errorf("an inner mount comes before the outer: %+v", s.Mounts)
	}
}

func TestBuild_EnvironmentFromFields(t *testing.T) {
	s := built(t, func(in *input) {
		in.fields = map[resourcev1.SandboxField]string{resourcev1.SandboxField_SANDBOX_FIELD_UID: "01KB"}
		in.container.Env = []*resourcev1.EnvironmentVariable{
			{Name: "LANG", From: resourcev1.SandboxField_SANDBOX_FIELD_UID}, {Name: "ADDRESS", From: resourcev1.SandboxField_SANDBOX_FIELD_ADDRESS},
		}
		in.container.Tty = true
	})
	want := []string{"LANG=01KB", "MODE=image", defaultPath, "TERM=xterm", "ADDRESS="}
	if !slices.Equal(s.Process.Env, want) || !s.Process.Terminal || s.Process.ConsoleSize == nil {
		t.Errorf("got %q, want %q", s.Process.Env, want)
	}
}
