package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	kindSandbox = resourcev1.Kind_KIND_SANDBOX
	kindDisk    = resourcev1.Kind_KIND_DISK
	kindNode    = resourcev1.Kind_KIND_NODE
)

// ETC-5: more records than fit one transaction are listed as one view, come to a
// node, outlive a restart there, and are deleted without a trace. The case's 200
// leases have no way to be made in such numbers: a lease belongs to a sandbox that
// is placed, and goes with it.
func TestMachine_ETC5_FourHundredRecords(t *testing.T) {
	const many = 400
	b, _ := machine(t, bed.Options{})
	var yaml strings.Builder
	for i := range many {
		yaml.WriteString(strings.Replace(sandboxYAML(fmt.Sprintf("s%03d", i), "sleep", ""), "desired: RUNNING", "desired: STOPPED", 1))
	}
	apply(t, b, yaml.String())
	uids := strings.Fields(b.OK("get", "sandbox", "-o", "name"))
	if len(uids) != many {
		t.Fatalf("the list has %d records, want %d", len(uids), many)
	}
	first := list(t, b, "")
	for token := first.GetNextPageToken(); token != ""; {
		page := list(t, b, token)
		if page.GetRevision() != first.GetRevision() {
			t.Errorf("a page is of revision %d, the first of %d", page.GetRevision(), first.GetRevision())
		}
		token = page.GetNextPageToken()
	}
	onNode := func(want int) func(context.Context) (bool, string) {
		return func(ctx context.Context) (bool, string) {
			r, err := b.Host().ListSandboxes(ctx, &sandboxhostv1.ListSandboxesRequest{PageSize: 1000})
			return err == nil && len(r.GetSandboxes()) == want, fmt.Sprintf("%d sandboxes, %v", len(r.GetSandboxes()), err)
		}
	}
	bed.Eventually(t, time.Minute, "all of them are on the node", onNode(many))
	for _, name := range []string{"clusteraccess", "sandboxhost"} {
		b.Kill(name)
	}
	b.WaitReady()
	bed.Eventually(t, time.Minute, "all of them are on the node after a restart", onNode(many))

	b.OK(append([]string{"delete", "sandbox", "--no-wait"}, uids...)...)
	bed.Eventually(t, time.Minute, "no record is left", func(context.Context) (bool, string) {
		n := len(strings.Fields(b.OK("get", "sandbox", "-o", "name")))
		return n == 0, fmt.Sprintf("%d records", n)
	})
	bed.Eventually(t, time.Minute, "none is on the node", onNode(0))
	// The names are free again, so no index has kept them.
	if out := b.CLIWith(strings.NewReader(yaml.String()), "apply", "-f", "-"); out.Code != 0 || strings.Count(out.Stdout, "created") != many {
		t.Errorf("the same names again: exit code %d, %d created\n%s", out.Code, strings.Count(out.Stdout, "created"), out.Stderr)
	}
	b.OK(append([]string{"delete", "sandbox", "--no-wait"}, strings.Fields(b.OK("get", "sandbox", "-o", "name"))...)...)
	bed.Eventually(t, time.Minute, "none is on the node", onNode(0))
}

func list(t *testing.T, b *bed.Bed, token string) *coordinatorv1.ListResourcesResponse {
	t.Helper()
	r, err := b.Records().ListResources(t.Context(), &coordinatorv1.ListResourcesRequest{Kind: kindSandbox, PageSize: 64, PageToken: token})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// coordinatorAlone starts a machine that has a coordinator and no node.
func coordinatorAlone(t *testing.T) *bed.Bed {
	t.Helper()
	b := bed.New(t, bed.Options{Lan: true})
	b.Start()
	b.WaitReady()
	return b
}

// full is a record of each kind in which every writable field says something.
func full() []*resourcev1.Resource {
	meta := func(kind resourcev1.Kind) *resourcev1.Metadata {
		return &resourcev1.Metadata{Kind: kind, Name: "full", Labels: map[string]string{"a": "1"}}
	}
	return []*resourcev1.Resource{
		{Meta: meta(kindSandbox), Kind: &resourcev1.Resource_Sandbox{Sandbox: &resourcev1.Sandbox{Spec: &resourcev1.SandboxSpec{
			Desired: resourcev1.DesiredState_DESIRED_STATE_RUNNING, Network: resourcev1.NetworkMode_NETWORK_MODE_SANDBOX,
			RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_NEVER, TerminationGracePeriod: durationpb.New(3 * time.Second), Hostname: "host",
			Disconnect:   &resourcev1.DisconnectPolicy{StopAfter: durationpb.New(time.Minute)},
			NodeSelector: map[string]string{"zone": "a"},
			RestartBackoff: &resourcev1.RestartBackoff{
				Initial: durationpb.New(time.Second), Cap: durationpb.New(time.Minute), ResetAfter: durationpb.New(time.Minute),
			},
			Hosts:          []*resourcev1.HostEntry{{Address: "192.0.2.1", Names: []string{"db"}}},
			ScratchVolumes: []*resourcev1.ScratchVolume{{Name: "work"}},
			ShmSizeBytes:   proto.Int64(1 << 20),
			Sysctls:        []*resourcev1.Sysctl{{Name: "net.core.somaxconn", Value: "512"}},
			UserNamespace:  true,
			NetworkGroup:   "shop",
			PublishedPorts: []*resourcev1.PublishedPort{{HostPort: 8080, HostAddress: "127.0.0.1", Port: 80, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_UDP}},
			Containers:     []*resourcev1.ContainerSpec{fullContainer(), fullHelper(), fullInit()},
		}}}},
		{Meta: meta(kindDisk), Kind: &resourcev1.Resource_Disk{Disk: &resourcev1.Disk{Spec: &resourcev1.DiskSpec{Node: "node9"}}}},
		{Meta: meta(kindNode), Kind: &resourcev1.Resource_Node{Node: &resourcev1.Node{Spec: &resourcev1.NodeSpec{Cordoned: true}}}},
	}
}

// fullContainer sets all that does not exclude something else.
func fullContainer() *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{
		Name: "main", Image: bed.ProbeImage, Command: []string{"/probe"}, Args: []string{"sleep"}, WorkingDir: "/w", User: "1:2",
		Groups: []string{"3"}, Tty: true, Stdin: true, PullPolicy: resourcev1.PullPolicy_PULL_POLICY_NEVER,
		Env: []*resourcev1.EnvironmentVariable{{Name: "A", Value: "1"}, {Name: "B", From: resourcev1.SandboxField_SANDBOX_FIELD_NAME},
			{Name: "C", Secret: &resourcev1.SecretReference{Name: "db", Key: "password"}}},
		InitProcess: true, LogMode: resourcev1.LogMode_LOG_MODE_NON_BLOCKING,
		Secrets: []*resourcev1.SecretMount{{Secret: "tls", Path: "/tls", Files: []*resourcev1.SecretFile{{Key: "key", File: "tls.key"}}, Mode: "0440"}},
		Limits: &resourcev1.ResourceLimits{
			MemoryLimitBytes: proto.Int64(1 << 28), CpuLimitMillicores: proto.Int64(100), PidsLimit: proto.Int64(10),
			CpuShares: proto.Int64(512), IoWeight: proto.Int64(50),
		},
		Ulimits:        []*resourcev1.Ulimit{{Name: "nofile", Soft: 100, Hard: proto.Int64(200)}},
		OomScoreAdjust: proto.Int32(100),
		Disks:          []*resourcev1.DiskMount{{Disk: "data", Path: "/data", ReadOnly: true}},
		Tmpfs:          []*resourcev1.TmpfsMount{{Path: "/t", SizeLimitBytes: proto.Int64(1 << 20), Mode: "1777", Executable: true}},
		Files: []*resourcev1.ConfigFile{
			{Path: "/f", Content: &resourcev1.ConfigFile_Text{Text: "a"}, Mode: "0600"},
			{Path: "/g", Content: &resourcev1.ConfigFile_Data{Data: []byte{0, 1}}},
		},
		Scratch:    []*resourcev1.ScratchMount{{Volume: "work", Path: "/s", ReadOnly: true}},
		HostMounts: []*resourcev1.HostMount{{HostPath: "/srv", Path: "/srv", ReadOnly: true}},
		Security: &resourcev1.SecuritySpec{
			Profile: resourcev1.SecurityProfile_SECURITY_PROFILE_DEFAULT, AddCapabilities: []string{"NET_RAW"}, DropCapabilities: []string{"KILL"},
			ReadOnlyRoot: true, RunAsNonRoot: true, Privileged: true,
			Seccomp: resourcev1.Confinement_CONFINEMENT_UNCONFINED, Apparmor: resourcev1.Confinement_CONFINEMENT_UNCONFINED,
			Devices: []*resourcev1.DeviceAccess{{Path: "/dev/fuse", ReadOnly: true}},
		},
		TerminationGracePeriod: durationpb.New(3 * time.Second), StopSignal: "SIGQUIT",
		PreStop: &resourcev1.ExecAction{Command: []string{"/probe"}},
		Ports:   []*resourcev1.ContainerPort{{Port: 80, Protocol: resourcev1.PortProtocol_PORT_PROTOCOL_TCP, Name: "web"}},
		StartupProbe: &resourcev1.Probe{
			Check:        &resourcev1.Probe_Http{Http: &resourcev1.HttpCheck{Port: 80, Path: "/up", Tls: true, Host: "web"}},
			InitialDelay: durationpb.New(time.Second), Period: durationpb.New(time.Second), Timeout: durationpb.New(time.Second),
			SuccessThreshold: 2, FailureThreshold: 3,
		},
		LivenessProbe:  &resourcev1.Probe{Check: &resourcev1.Probe_Tcp{Tcp: &resourcev1.TcpCheck{Port: 80}}},
		ReadinessProbe: &resourcev1.Probe{Check: &resourcev1.Probe_Grpc{Grpc: &resourcev1.GrpcCheck{Port: 80, Service: "s"}}},
	}
}

// fullHelper and fullInit set what fullContainer cannot have beside all the rest.
func fullHelper() *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{
		Name: "helper", Image: bed.ProbeImage,
		Limits:       &resourcev1.ResourceLimits{MemoryLimitBytes: proto.Int64(1 << 28), SwapLimitBytes: proto.Int64(1 << 20)},
		StartupProbe: &resourcev1.Probe{Check: &resourcev1.Probe_Exec{Exec: &resourcev1.ExecAction{Command: []string{"/probe"}}}},
	}
}

func fullInit() *resourcev1.ContainerSpec {
	return &resourcev1.ContainerSpec{Name: "prepare", Image: bed.ProbeImage, Init: true}
}

// kept are the fields that a record cannot be without, or that never change: to
// take one away is refused.
var kept = []string{
	"SandboxSpec.desired", "SandboxSpec.containers", "ContainerSpec.name", "ContainerSpec.image", "ContainerSpec.disks",
	"EnvironmentVariable.name", "DiskMount.disk", "DiskMount.path", "DiskSpec.node",
	"SandboxSpec.scratch_volumes", "ScratchVolume.name", "ScratchMount.volume", "ScratchMount.path", "TmpfsMount.path", "ConfigFile.path",
	"HostMount.host_path", "HostMount.path", "DeviceAccess.path", "Sysctl.name", "Sysctl.value", "HostEntry.address", "HostEntry.names",
	"Ulimit.name", "ContainerPort.port", "HttpCheck.port", "TcpCheck.port", "GrpcCheck.port", "ExecAction.command",
	"Probe.http", "Probe.tcp", "Probe.grpc", "Probe.exec",
	"SecretReference.name", "SecretReference.key", "SecretMount.secret", "SecretMount.path", "SecretFile.key", "PublishedPort.host_port", "PublishedPort.port",
}

// neverZero are the durations that have a lower bound.
var neverZero = []string{
	"DisconnectPolicy.stop_after", "RestartBackoff.initial", "RestartBackoff.cap", "RestartBackoff.reset_after", "Probe.period", "Probe.timeout",
}

// variant is a record with one field at zero.
type variant struct {
	field  string
	record *resourcev1.Resource
}

// variants returns for every writable field of a full record one without it, and
// where absent and zero are two things, one with zero. It fails the test for a
// field that the full record sets nowhere, such as a new one, unless it is an exception.
func variants(t *testing.T, whole *resourcev1.Resource, exceptions ...string) []variant {
	t.Helper()
	bare := proto.CloneOf(whole)
	bare.Meta.Labels = nil
	all := []variant{{"Metadata.labels", bare}}
	set := map[string]bool{} // by field: whether it has its variant
	var walk func(at func(*resourcev1.Resource) protoreflect.Message)
	walk = func(at func(*resourcev1.Resource) protoreflect.Message) {
		fields := at(whole).Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			name := string(f.Parent().Name()) + "." + string(f.Name())
			has := at(whole).Has(f)
			if has && !set[name] {
				all = append(all, without(whole, name, f, at)...)
			}
			set[name] = set[name] || has
			if !has {
				continue
			}
			for _, inner := range insides(at(whole), f) {
				walk(func(r *resourcev1.Resource) protoreflect.Message { return inner(at(r)) })
			}
		}
	}
	walk(specOf)
	for name, has := range set {
		if !has && !slices.Contains(exceptions, name) {
			t.Errorf("the full record does not set %s", name)
		}
	}
	return all
}

// without is a record without one field, and with it at zero if that is another thing.
func without(whole *resourcev1.Resource, name string, f protoreflect.FieldDescriptor, at func(*resourcev1.Resource) protoreflect.Message) []variant {
	absent := proto.CloneOf(whole)
	at(absent).Clear(f)
	out := []variant{{name, absent}}
	if isDuration(f) && !slices.Contains(neverZero, name) {
		zero := proto.CloneOf(whole)
		at(zero).Set(f, protoreflect.ValueOfMessage((&durationpb.Duration{}).ProtoReflect()))
		out = append(out, variant{name + " of 0s", zero})
	}
	return out
}

func isDuration(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Duration"
}

// insides leads from a message to each message in one field of it.
func insides(m protoreflect.Message, f protoreflect.FieldDescriptor) []func(protoreflect.Message) protoreflect.Message {
	switch {
	case f.Kind() != protoreflect.MessageKind || f.IsMap() || isDuration(f):
		return nil
	case !f.IsList():
		return []func(protoreflect.Message) protoreflect.Message{func(m protoreflect.Message) protoreflect.Message { return m.Mutable(f).Message() }}
	}
	var out []func(protoreflect.Message) protoreflect.Message
	for i := range m.Get(f).List().Len() {
		out = append(out, func(m protoreflect.Message) protoreflect.Message { return m.Mutable(f).List().Get(i).Message() })
	}
	return out
}

// specOf is the spec of a record, to be read or changed.
func specOf(r *resourcev1.Resource) protoreflect.Message {
	switch k := r.GetKind().(type) {
	case *resourcev1.Resource_Sandbox:
		return k.Sandbox.GetSpec().ProtoReflect()
	case *resourcev1.Resource_Disk:
		return k.Disk.GetSpec().ProtoReflect()
	case *resourcev1.Resource_Service:
		return k.Service.GetSpec().ProtoReflect()
	default:
		return r.GetNode().GetSpec().ProtoReflect()
	}
}

// update replaces labels and spec of a record, on top of whatever revision there
// is.
func update(ctx context.Context, b *bed.Bed, asked *resourcev1.Resource) error {
	api := b.Records()
	for {
		now, err := api.GetResource(ctx, &coordinatorv1.GetResourceRequest{
			Kind: asked.GetMeta().GetKind(), Which: &coordinatorv1.GetResourceRequest_Name{Name: asked.GetMeta().GetName()},
		})
		if err != nil {
			return err
		}
		next := proto.CloneOf(asked)
		next.Meta.Revision = now.GetResource().GetMeta().GetRevision()
		_, err = api.UpdateResource(ctx, &coordinatorv1.UpdateResourceRequest{Resource: next})
		if fault.Reason(err) != "REVISION" {
			return err
		}
	}
}

func sameAsAsked(t *testing.T, what string, got, want *resourcev1.Resource) {
	t.Helper()
	if !proto.Equal(specOf(got).Interface(), specOf(want).Interface()) {
		t.Errorf("%s: got spec %v, want %v", what, specOf(got), specOf(want))
	}
	if len(got.GetMeta().GetLabels()) != len(want.GetMeta().GetLabels()) {
		t.Errorf("%s: got labels %v, want %v", what, got.GetMeta().GetLabels(), want.GetMeta().GetLabels())
	}
}

// ETC-10: every writable field goes to zero and back through the API, and what the
// command line prints of that makes the same record when it is applied.
func TestCoordinator_ETC10_ZeroOfEveryField(t *testing.T) {
	b := coordinatorAlone(t)
	for _, whole := range full() {
		kind, word := whole.GetMeta().GetKind(), strings.ToLower(strings.TrimPrefix(whole.GetMeta().GetKind().String(), "KIND_"))
		if _, err := b.Records().CreateResource(t.Context(), &coordinatorv1.CreateResourceRequest{Resource: whole}); err != nil {
			t.Fatal(err)
		}
		for _, v := range variants(t, whole) {
			err := update(t.Context(), b, v.record)
			if slices.Contains(kept, v.field) {
				if !errors.Is(err, fault.Invalid) {
					t.Errorf("%s taken away: got %v, want Invalid", v.field, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", v.field, err)
				continue
			}
			sameAsAsked(t, v.field+" by the API", get(t, b, kind, "full"), v.record)
			// A copy by hand, over the full one of the time before.
			printed := b.OK("get", word, "full", "-o", "yaml")
			copied := dropKeys(strings.Replace(printed, "name: full\n", "name: copy\n", 1))
			r := b.CLIWith(strings.NewReader(copied), "apply", "-f", "-")
			if r.Code != 0 {
				t.Errorf("%s: apply: exit code %d\n%s\n%s", v.field, r.Code, r.Stderr, copied)
				continue
			}
			sameAsAsked(t, v.field+" by apply", get(t, b, kind, "copy"), v.record)
			if err := update(t.Context(), b, whole); err != nil {
				t.Errorf("%s back: %v", v.field, err)
			}
			sameAsAsked(t, v.field+" set again", get(t, b, kind, "full"), whole)
		}
	}
	// The last variants outlive a restart.
	before := map[resourcev1.Kind]*resourcev1.Resource{}
	for _, kind := range []resourcev1.Kind{kindSandbox, kindDisk, kindNode} {
		before[kind] = get(t, b, kind, "copy")
	}
	b.Kill("coordinator")
	b.WaitReady()
	for kind, want := range before {
		sameAsAsked(t, "after a restart", get(t, b, kind, "copy"), want)
	}
}

// dropKeys removes what belongs to the record that was printed: the copy is
// another one.
func dropKeys(yaml string) string {
	var out []string
	for line := range strings.Lines(yaml) {
		if key, _, _ := strings.Cut(line, ":"); key != "uid" && key != "generation" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// Two people change one record at the same time: nobody's change is undone without
// a word. Who edited what was printed before the other's change is told.
func TestCoordinator_ChangedMeanwhile(t *testing.T) {
	b := coordinatorAlone(t)
	apply(t, b, sandboxYAML("web", "sleep", "  hostname: h0\n  termination_grace_period: 1s\n"))
	hostname, period := regexp.MustCompile(`(hostname:) \S+`), regexp.MustCompile(`(termination_grace_period:) \S+`)
	for round := 2; round < 6; round++ {
		edits := []func(string) string{
			func(doc string) string { return hostname.ReplaceAllString(doc, fmt.Sprintf("$1 h%d", round)) },
			func(doc string) string { return period.ReplaceAllString(doc, fmt.Sprintf("$1 %ds", round)) },
		}
		printed := b.OK("get", "sandbox", "web", "-o", "yaml")
		results := make([]bed.Result, len(edits))
		var both sync.WaitGroup
		for i, edit := range edits {
			both.Go(func() { results[i] = b.CLIWith(strings.NewReader(edit(printed)), "apply", "-f", "-") }) // waited for below
		}
		both.Wait()
		loser := 0
		if results[0].Code == 0 {
			loser = 1
		}
		if results[1-loser].Code != 0 || results[loser].Code != 4 || !strings.Contains(results[loser].Stderr, "was changed meanwhile") {
			t.Fatalf("round %d: got %+v, want that one is made and the other is told", round, results)
		}
		again := edits[loser](b.OK("get", "sandbox", "web", "-o", "yaml"))
		if r := b.CLIWith(strings.NewReader(again), "apply", "-f", "-"); r.Code != 0 {
			t.Fatalf("round %d, again: %+v", round, r)
		}
		spec := get(t, b, kindSandbox, "web").GetSandbox().GetSpec()
		if spec.GetHostname() != fmt.Sprintf("h%d", round) || spec.GetTerminationGracePeriod().AsDuration() != time.Duration(round)*time.Second {
			t.Fatalf("round %d: got %v, want both changes", round, spec)
		}
	}
	// Changes of one field are made on top of whatever there is.
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() { // waited for below
			for j := range 5 {
				if err := label(t.Context(), b, "web", fmt.Sprintf("l%d-%d", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := b.CLI("stop", "web", "--no-wait")
	all.Wait()
	r := get(t, b, kindSandbox, "web")
	if n := len(r.GetMeta().GetLabels()); n != 20 {
		t.Errorf("%d of 20 labels are there: %v", n, r.GetMeta().GetLabels())
	}
	if stop.Code != 0 || r.GetSandbox().GetSpec().GetDesired() != resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		t.Errorf("stop among others' changes: %+v, got %v", stop, r.GetSandbox().GetSpec())
	}
}

// label adds one label, as often as others are faster.
func label(ctx context.Context, b *bed.Bed, name, key string) error {
	for {
		r, err := b.Records().GetResource(ctx, &coordinatorv1.GetResourceRequest{Kind: kindSandbox, Which: &coordinatorv1.GetResourceRequest_Name{Name: name}})
		if err != nil {
			return err
		}
		next := r.GetResource()
		if next.Meta.Labels == nil {
			next.Meta.Labels = map[string]string{}
		}
		next.Meta.Labels[key] = "1"
		_, err = b.Records().UpdateResource(ctx, &coordinatorv1.UpdateResourceRequest{Resource: next})
		if fault.Reason(err) != "REVISION" {
			return err
		}
	}
}

// UDS-6: an error is of the same kind at every hop, whoever made it and however
// many processes it came through, and no process calls one unknown.
func TestMachine_UDS6_KindsCrossEveryHop(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	uid := ensure(t, b, "local", spec(never, probe("main", "sleep")))
	apply(t, b, sandboxYAML("web", "sleep", ""))
	api, access, host := b.Records(), clusteraccessv1.NewClusterAccessServiceClient(b.Conn("clusteraccess")), b.Host()
	stale := get(t, b, kindSandbox, "web")
	if err := label(t.Context(), b, "web", "a"); err != nil {
		t.Fatal(err)
	}
	stale.Meta.Labels = map[string]string{"b": "1"}
	asNode := coordinatorv1.NewResourceServiceClient(b.ConnAPI("node"))
	other := spec(never, probe("main", "deaf"))
	for _, c := range []struct {
		name   string
		call   func(context.Context) error
		kind   fault.Kind
		reason string
	}{
		{"record at the coordinator", func(ctx context.Context) error {
			_, err := api.GetResource(ctx, &coordinatorv1.GetResourceRequest{Kind: kindSandbox, Which: &coordinatorv1.GetResourceRequest_Uid{Uid: newUID()}})
			return err
		}, fault.NotFound, ""},
		{"record through clusteraccess", func(ctx context.Context) error {
			_, err := access.GetResource(ctx, &clusteraccessv1.GetResourceRequest{Kind: kindSandbox, Uid: newUID()})
			return err
		}, fault.NotFound, ""},
		{"disk through clusteraccess", func(ctx context.Context) error {
			_, err := access.GetResource(ctx, &clusteraccessv1.GetResourceRequest{Kind: kindDisk, Uid: newUID()})
			return err
		}, fault.NotFound, ""},
		{"no uid, through clusteraccess", func(ctx context.Context) error {
			_, err := access.GetResource(ctx, &clusteraccessv1.GetResourceRequest{Kind: kindSandbox, Uid: "x"})
			return err
		}, fault.Invalid, ""},
		{"sandbox at the host", func(ctx context.Context) error {
			_, err := host.GetSandbox(ctx, &sandboxhostv1.GetSandboxRequest{Uid: newUID()})
			return err
		}, fault.NotFound, ""},
		{"logs at the host", func(ctx context.Context) error {
			stream, err := host.ReadLogs(ctx, &sandboxhostv1.ReadLogsRequest{Uid: newUID(), Container: "main", Attempt: 1})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, fault.NotFound, ""},
		{"another spec in one generation", func(ctx context.Context) error {
			_, err := host.EnsureSandbox(ctx, &sandboxhostv1.EnsureSandboxRequest{Uid: uid, Name: "local", Generation: 1, Manager: "local", Spec: other})
			return err
		}, fault.Conflict, ""},
		{"overtaken update", func(ctx context.Context) error {
			_, err := api.UpdateResource(ctx, &coordinatorv1.UpdateResourceRequest{Resource: stale})
			return err
		}, fault.Conflict, "REVISION"},
		{"a node that acts as operator", func(ctx context.Context) error {
			_, err := asNode.DeleteResource(ctx, &coordinatorv1.DeleteResourceRequest{Kind: kindSandbox, Name: "web"})
			return err
		}, fault.Denied, ""},
		{"an operator that acts as presence", func(ctx context.Context) error {
			_, err := access.EndSession(ctx, &clusteraccessv1.EndSessionRequest{SessionId: 1})
			return err
		}, fault.Denied, ""},
	} {
		err := c.call(t.Context())
		if fault.KindOf(err) != c.kind || c.reason != "" && fault.Reason(err) != c.reason {
			t.Errorf("%s: got %v (%v, %q), want %v %q", c.name, err, fault.KindOf(err), fault.Reason(err), c.kind, c.reason)
		}
	}
	socket := []string{"--node-socket", b.HostSocket()}
	for _, c := range []struct {
		code int
		args []string
	}{
		{3, []string{"get", "sandbox", "none"}},
		{3, []string{"delete", "disk", "none"}},
		{3, append(socket, "logs", "none")},
		{3, append(socket, "rm", "none")},
		{4, []string{"run", "-d", "--name", "web", bed.ProbeImage}},
		{4, append(socket, "run", "-d", "--name", "local", bed.ProbeImage)},
	} {
		if r := b.CLI(c.args...); r.Code != c.code {
			t.Errorf("staddle %v: exit code %d, want %d\n%s", c.args, r.Code, c.code, r.Stderr)
		}
	}
	// What cannot be asked is not "not found".
	b.Stop("coordinator")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := access.GetResource(ctx, &clusteraccessv1.GetResourceRequest{Kind: kindSandbox, Uid: stale.GetMeta().GetUid()}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the coordinator is away: got %v (%v), want Unavailable", err, fault.KindOf(err))
	}
	b.Continue("coordinator")
	b.WaitReady()
	for name, text := range b.Logs() {
		for line := range strings.Lines(text) {
			if strings.Contains(line, `"code":"unknown"`) || strings.Contains(line, `"code":"internal"`) {
				t.Errorf("%s says: %s", name, line)
			}
		}
	}
	remove(t, b, uid)
}

// A caller whose uid is nobody's is refused by every process, by name, and the
// command line says so with its own exit code.
func TestMachine_AnotherUserIsDenied(t *testing.T) {
	b, _ := machine(t, bed.Options{})
	for _, args := range [][]string{
		{"--node-socket", b.HostSocket(), "ps"},
		{"--node-socket", b.HostSocket(), "run", "-d", bed.ProbeImage},
		{"--node-socket", b.HostSocket(), "image", "ls"},
		{"get", "sandbox"},
	} {
		if r := b.CLIAs(65534, args...); r.Code != 6 || r.Stderr == "" || r.Stdout != "" {
			t.Errorf("staddle %v as nobody: exit code %d, want 6\n%s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	if onHost(t, b, "hello") != nil {
		t.Error("a sandbox was made")
	}
	// The user of one process has its role and no more.
	if r := b.CLIAs(64100, "--node-socket", b.HostSocket(), "ps"); r.Code != 6 {
		t.Errorf("ps as clusteraccess: exit code %d, want 6\n%s", r.Code, r.Stderr)
	}
}

// UDS-6, SEC: an identity of another cluster, one of a node, and none at all are
// told apart from a coordinator that is not there.
func TestCoordinator_UDS6_WrongIdentity(t *testing.T) {
	b, other := coordinatorAlone(t), coordinatorAlone(t)
	pki := func(of *bed.Bed, name string) string { return filepath.Join(of.Paths.Etc(), "pki", name) }
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"of another cluster":      {[]string{"--cert", pki(other, "operator.crt"), "--key", pki(other, "operator.key")}, 6, "certificate"},
		"another cluster's CA":    {[]string{"--ca", pki(other, "ca.crt")}, 6, "--ca"},
		"key of another":          {[]string{"--key", pki(b, "node.key")}, 2, "identity"},
		"of a node":               {[]string{"--cert", pki(b, "node.crt"), "--key", pki(b, "node.key")}, 6, ""},
		"nobody serves there":     {[]string{"--coordinator", "192.0.2.1:1"}, 5, "refused"},
		"no route to what serves": {[]string{"--coordinator", "203.0.113.1:8443"}, 5, "unreachable"},
	} {
		for _, command := range [][]string{{"disk", "create", "data"}, {"get", "sandbox"}} {
			if name == "of a node" && command[0] == "get" {
				continue // a node may list its own records
			}
			r := b.CLI(append(append([]string{}, c.args...), command...)...)
			if r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("%s, %v: exit code %d, want %d and %q\n%s", name, command, r.Code, c.code, c.says, r.Stderr)
			}
		}
	}
}
