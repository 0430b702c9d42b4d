package command_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

// Every flag of "run" says in the spec what it says in words.
func TestRun_FlagsAreTheSpec(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	text, raw := filepath.Join(dir, "text"), filepath.Join(dir, "raw")
	if err := errors.Join(os.WriteFile(text, []byte("a = 1"), 0o600), os.WriteFile(raw, []byte{0xff, 0}, 0o600)); err != nil {
		t.Fatal(err)
	}
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "web", "--memory", "64MiB", "--swap", "16MiB", "--cpu-shares", "512", "--io-weight", "300",
		"--oom-score-adj", "0", "--log-mode", "non-blocking", "--ulimit", "nofile=100:200", "--ulimit", "core=-1", "--tmpfs", "/tmp", "--tmpfs", "/mem:1MiB",
		"--config-file", text+":/etc/a:0400", "--config-file", raw+":/etc/b", "--scratch", "work:/work", "--scratch", "work:/seen:ro",
		"--host-path", "/srv/a:/a:ro", "--shm-size", "1MiB", "--hostname", "inside", "--add-host", "db:10.1.2.3", "--add-host", "six:[2001:db8::1]",
		"--group-add", "audio", "-p", "8080:80", "-p", "127.0.0.1:5353:53/udp", "-p", "0.0.0.0:81:81/tcp", "--sysctl", "net.core.somaxconn=77", "--env-from", "ME=uid", "-t", "--stdin", "--user-namespace", "--security", "restricted",
		"--cap-drop", "all", "--read-only", "--run-as-non-root", "--device", "/dev/fuse:ro", "serve"), 0)
	got := h.byName("web").GetSpec()
	expected := &resourcev1.SandboxSpec{
		Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Network: resourcev1.NetworkMode_NETWORK_MODE_SANDBOX,
		RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS, Hostname: "inside", ShmSizeBytes: new(int64(1 << 20)),
		ScratchVolumes: []*resourcev1.ScratchVolume{{Name: "work"}},
		Hosts:          []*resourcev1.HostEntry{{Address: "10.1.2.3", Names: []string{"db"}}, {Address: "2001:db8::1", Names: []string{"six"}}},
		Sysctls:        []*resourcev1.Sysctl{{Name: "net.core.somaxconn", Value: "77"}},
		UserNamespace:  true,
		PublishedPorts: []*resourcev1.PublishedPort{
			{HostPort: 8080, Port: 80, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_TCP},
			{HostPort: 5353, Port: 53, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_UDP, HostAddress: "127.0.0.1"},
			{HostPort: 81, Port: 81, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_TCP},
		},
		Containers: []*resourcev1.ContainerSpec{{
			Name: "main", Image: "serve", Groups: []string{"audio"}, Tty: true, Stdin: true, OomScoreAdjust: new(int32(0)), LogMode: resourcev1.LogMode_LOG_MODE_NON_BLOCKING,
			Env: []*resourcev1.EnvironmentVariable{{Name: "ME", From: resourcev1.SandboxField_SANDBOX_FIELD_UID}},
			Limits: &resourcev1.ResourceLimits{
				MemoryLimitBytes: new(int64(64 << 20)), SwapLimitBytes: new(int64(16 << 20)), CpuShares: new(int64(512)), IoWeight: new(int64(300)),
			},
			Ulimits: []*resourcev1.Ulimit{{Name: "nofile", Soft: 100, Hard: new(int64(200))}, {Name: "core", Soft: -1}},
			Tmpfs:   []*resourcev1.TmpfsMount{{Path: "/tmp"}, {Path: "/mem", SizeLimitBytes: new(int64(1 << 20))}},
			Files: []*resourcev1.ConfigFile{
				{Path: "/etc/a", Content: &resourcev1.ConfigFile_Text{Text: "a = 1"}, Mode: "0400"},
				{Path: "/etc/b", Content: &resourcev1.ConfigFile_Data{Data: []byte{0xff, 0}}},
			},
			Scratch:    []*resourcev1.ScratchMount{{Volume: "work", Path: "/work"}, {Volume: "work", Path: "/seen", ReadOnly: true}},
			HostMounts: []*resourcev1.HostMount{{HostPath: "/srv/a", Path: "/a", ReadOnly: true}},
			Security: &resourcev1.SecuritySpec{
				Profile: resourcev1.SecurityProfile_SECURITY_PROFILE_RESTRICTED, DropCapabilities: []string{"ALL"}, ReadOnlyRoot: true, RunAsNonRoot: true,
				Devices: []*resourcev1.DeviceAccess{{Path: "/dev/fuse", ReadOnly: true}},
			},
		}},
	}
	if !proto.Equal(expected, got) {
		t.Errorf("got  %v\nwant %v", got, expected)
	}
	want(t, cli(t, "--node-socket", h.path, "run", "-d", "--name", "rights", "--cap-add", "cap_net_raw", "--seccomp", "unconfined", "--apparmor", "unconfined",
		"--privileged", "serve"), 0)
	security := h.byName("rights").GetSpec().GetContainers()[0].GetSecurity()
	const none = resourcev1.Confinement_CONFINEMENT_UNCONFINED
	if !security.GetPrivileged() || security.GetSeccomp() != none || security.GetApparmor() != none || security.GetAddCapabilities()[0] != "NET_RAW" {
		t.Errorf("got %v", security)
	}
}
