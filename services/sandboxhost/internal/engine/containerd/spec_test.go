package containerd

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	"staddle.internal/services/sandboxhost/internal/image"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample() input {
	memory, cpu, pids := int64(64<<20), int64(250), int64(100)
	return input{
		id: "01kb0000000000000000000000-web-1", group: "/staddle.slice/01kb0000000000000000000000/web",
		shim: "01kb0000000000000000000000",
		container: &resourcev1.ContainerSpec{
			Name: "web", Args: []string{"serve", "--all"},
			Env:    []*resourcev1.EnvironmentVariable{{Name: "LANG", Value: "C"}, {Name: "GREETING", Value: "hello world"}},
			Limits: &resourcev1.ResourceLimits{MemoryLimitBytes: &memory, CpuLimitMillicores: &cpu, PidsLimit: &pids},
			Disks:  []*resourcev1.DiskMount{{Disk: "data", Path: "/data"}, {Disk: "seed", Path: "/seed/", ReadOnly: true}},
		},
		config: image.Image{Name: "example.org/web:1", Config: ocispec.ImageConfig{
			Entrypoint: []string{"/bin/web"}, Cmd: []string{"help"}, Env: []string{"LANG=de", "MODE=image"}, WorkingDir: "/srv",
		}},
		user: specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{2000}},
		net:  "/run/ns/net", ipc: "/run/ns/ipc", uts: "/run/ns/uts",
		places: places{shm: "/run/shm", etc: "/run/etc", scratch: "/var/scratch", files: "/run/files", binds: "/run/binds"},
		disks:  map[string]string{"data": "/var/disks/data", "seed": "/var/disks/seed"},
		able: abilities{
			limitSwap: true, weighIO: true, raise: true, hard: map[string]uint64{"nofile": 20000},
			capabilities: []string{"CAP_CHOWN", "CAP_SYS_ADMIN"},
		},
	}
}

// TestBuild_Golden shows the whole spec of a container. The filter is long and
// containerd's own: only its frame is in the file.
func TestBuild_Golden(t *testing.T) {
	s, err := build(sample())
	if err != nil {
		t.Fatal(err)
	}
	if want := nativeArch[runtime.GOARCH]; !slices.Equal(s.Linux.Seccomp.Architectures, []specs.Arch{want}) {
		t.Errorf("got architectures %v, want %v only", s.Linux.Seccomp.Architectures, want)
	}
	if len(s.Linux.Seccomp.Syscalls) == 0 || s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("got a filter of %d rules with default %s", len(s.Linux.Seccomp.Syscalls), s.Linux.Seccomp.DefaultAction)
	}
	s.Linux.Seccomp.Syscalls, s.Linux.Seccomp.Architectures = nil, nil
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	golden := filepath.Join("testdata", "spec.json")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the spec differs from %s (rewrite it with -update and read the difference):\n%s", golden, got)
	}
}

func TestBuild_Arguments(t *testing.T) {
	tests := []struct {
		name                                       string
		command, args, entrypoint, imageArgs, want []string
	}{
		{"the image says all", nil, nil, []string{"e"}, []string{"c"}, []string{"e", "c"}},
		{"args replace the image's", nil, []string{"x"}, []string{"e"}, []string{"c"}, []string{"e", "x"}},
		{"command drops the image's args", []string{"p", "q"}, nil, []string{"e"}, []string{"c"}, []string{"p", "q"}},
		{"command and args", []string{"p"}, []string{"x y", ""}, []string{"e"}, []string{"c"}, []string{"p", "x y", ""}},
		{"nothing to run", nil, nil, nil, nil, nil},
	}
	for _, tt := range tests {
		in := sample()
		in.container.Command, in.container.Args = tt.command, tt.args
		in.config.Config.Entrypoint, in.config.Config.Cmd = tt.entrypoint, tt.imageArgs
		s, err := build(in)
		if tt.want == nil {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: got %v, want invalid", tt.name, err)
			}
			continue
		}
		if err != nil || !slices.Equal(s.Process.Args, tt.want) {
			t.Errorf("%s: got %q, %v, want %q", tt.name, s.Process.Args, err, tt.want)
		}
	}
}

func TestBuild_HostNetworkAndMissingDisk(t *testing.T) {
	in := sample()
	in.net = ""
	s, err := build(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			t.Errorf("got %+v, want the node's own network", ns)
		}
	}
	delete(in.disks, "data")
	if _, err := build(in); !errors.Is(err, fault.Unavailable) || fault.Reason(err) != "WAITING_FOR_DISK" {
		t.Errorf("got %v, want to wait for the disk", err)
	}
}

// TestBuild_SCY5_SharesNothing makes a hundred specs: those made at once from one image
// must not see each other's values.
func TestBuild_SCY5_SharesNothing(t *testing.T) {
	config := sample().config
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			in := sample()
			in.config = config
			value := fmt.Sprint("value-", i)
			in.container.Args = []string{value}
			in.container.Env = []*resourcev1.EnvironmentVariable{{Name: "LANG", Value: value}, {Name: value, Value: value}}
			s, err := build(in)
			if err != nil {
				t.Error(err)
				return
			}
			s.Process.Capabilities.Bounding[0] = value
			s.Linux.MaskedPaths[0] = value
			s.Mounts[0].Options[0] = value
			want := []string{"LANG=" + value, "MODE=image", defaultPath, value + "=" + value}
			if !slices.Equal(s.Process.Env, want) || s.Process.Args[1] != value {
				t.Errorf("got %q %q", s.Process.Env, s.Process.Args)
			}
		})
	}
	wg.Wait()
	if s, err := build(sample()); err != nil || s.Process.Capabilities.Bounding[0] != "CAP_CHOWN" || s.Mounts[0].Options[0] != "nosuid" {
		t.Errorf("a later spec is changed: %v, %v", s.Process.Capabilities, err)
	}
}

func TestResolve(t *testing.T) {
	a := accounts{
		passwd: []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home:/bin/sh\n"),
		group:  []byte("root:x:0:\napp:x:1001:\nmore:x:2000:app,other\n"),
	}
	tests := map[string]specs.User{
		"":          {UID: 0, GID: 0},
		"app":       {UID: 1000, GID: 1001, AdditionalGids: []uint32{2000}},
		"1000":      {UID: 1000, GID: 1001, AdditionalGids: []uint32{2000}},
		"7:8":       {UID: 7, GID: 8},
		"7":         {UID: 7},
		"app:more":  {UID: 1000, GID: 2000},
		"1000:more": {UID: 1000, GID: 2000},
	}
	for name, want := range tests {
		got, err := resolve(a, name, "image")
		if err != nil || got.UID != want.UID || got.GID != want.GID || !slices.Equal(got.AdditionalGids, want.AdditionalGids) {
			t.Errorf("%q: got %+v, %v, want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"nobody", "app:none", "-1", "4294967296"} {
		if got, err := resolve(a, name, "image"); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: got %+v, %v, want invalid", name, got, err)
		}
	}
}

func TestReadWithin_StaysInside(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(outside, []byte("secret"), 0o600), os.WriteFile(filepath.Join(root, "real"), []byte("inside"), 0o600)); err != nil {
		t.Fatal(err)
	}
	link(outside, "escape")
	link("/real", "absolute")
	link("../../../../../real", "above")
	for name, want := range map[string]string{"escape": "", "absolute": "inside", "above": "inside", "real": "inside", "none": ""} {
		got, err := readWithin(root, "/"+name)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := readWithin(root, "/"); !errors.Is(err, fault.Invalid) {
		t.Errorf("a folder: got %v, want invalid", err)
	}
}
