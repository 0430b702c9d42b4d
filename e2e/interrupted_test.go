package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	"staddle.internal/e2e/bed"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// TestNode_LIF8_InterruptedStatesLeadOn has the whole runner killed, and the machine
// rebooted, while sandboxes start, stop and are deleted; each comes to what its wish says,
// and can be started, stopped and deleted then. A drain that is cut off has tests of its own.
func TestNode_LIF8_InterruptedStatesLeadOn(t *testing.T) {
	b, supervisor := alone(t, bed.Options{})
	for _, how := range []string{"killed", "rebooted"} {
		prepare := probe("first", "exit", "0", "4s")
		prepare.Init = true
		deaf := func(name string) *sandboxhostv1.EnsureSandboxRequest {
			s := spec(always, probe("c", "deaf"))
			s.TerminationGracePeriod = seconds(5)
			return &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: name, Generation: 1, Manager: "local", Spec: s}
		}
		starts := &sandboxhostv1.EnsureSandboxRequest{Uid: newUID(), Name: "starts", Generation: 1, Manager: "local", Spec: spec(always, prepare, probe("c", "sleep"))}
		stops, goes := deaf("stops"), deaf("goes")
		wish := func(r *sandboxhostv1.EnsureSandboxRequest) {
			t.Helper()
			_, err := b.Host().EnsureSandbox(t.Context(), r)
			must(t, err)
		}
		desire := func(r *sandboxhostv1.EnsureSandboxRequest, state resourcev1.DesiredState) {
			t.Helper()
			r.Spec, r.Generation = proto.CloneOf(r.GetSpec()), r.GetGeneration()+1
			r.Spec.Desired = state
			wish(r)
		}
		wish(stops)
		wish(goes)
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{stops, goes} {
			await(t, b, r.GetUid(), "running", running)
			bed.Eventually(t, waitLong, "it ignores the signal", outputIs(t, b, r.GetUid(), "c", 1, "deaf\n"))
		}
		wish(starts)
		await(t, b, starts.GetUid(), "starting", inPhase(resourcev1.SandboxPhase_SANDBOX_PHASE_STARTING))
		desire(stops, resourcev1.DesiredState_DESIRED_STATE_STOPPED)
		_, err := b.Host().RemoveSandbox(t.Context(), &sandboxhostv1.RemoveSandboxRequest{Uid: goes.GetUid(), Manager: "local"})
		must(t, err)
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{stops, goes} {
			await(t, b, r.GetUid(), "stopping", inPhase(resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPING))
		}
		if how == "killed" {
			b.KillRunner(supervisor, true)
		} else {
			b.Reboot(supervisor, "00000000-0000-4000-8000-000000000002")
		}
		supervisor = b.Start()
		b.WaitReady()
		await(t, b, starts.GetUid(), "running, "+how, running)
		await(t, b, stops.GetUid(), "ended, "+how, ended)
		await(t, b, goes.GetUid(), "torn down, "+how, func(s *resourcev1.SandboxStatus) bool { return s.GetTornDownAt() != nil })
		for _, r := range []*sandboxhostv1.EnsureSandboxRequest{starts, stops} {
			desire(r, resourcev1.DesiredState_DESIRED_STATE_RUNNING)
			await(t, b, r.GetUid(), "started, "+how, running)
			desire(r, resourcev1.DesiredState_DESIRED_STATE_STOPPED)
			await(t, b, r.GetUid(), "stopped, "+how, ended)
		}
		removeAll(t, b, starts.GetUid(), stops.GetUid(), goes.GetUid())
	}
	settled(t, b)
}

func inPhase(phase resourcev1.SandboxPhase) func(*resourcev1.SandboxStatus) bool {
	return func(s *resourcev1.SandboxStatus) bool { return s.GetPhase() == phase }
}

// groupFiles are the files of one name of a container's control group, in every hierarchy.
func groupFiles(t *testing.T, b *bed.Bed, uid, container, file string) []string {
	t.Helper()
	var all []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(filepath.Join(root, b.Parent, strings.ToLower(uid), container, file))
		must(t, err)
		all = append(all, found...)
	}
	return all
}

// TestNode_LIF9_OldGroupIsNeverShared leaves a process of the node's in the control group of
// a container whose shim dies, in place of a child that outlives it: one of the container's
// own ends with its first process. The next attempt shares nothing with it.
func TestNode_LIF9_OldGroupIsNeverShared(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	limited := func(bytes int64) *resourcev1.SandboxSpec {
		c := probe("c", "sleep")
		c.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: &bytes}
		return spec(always, c)
	}
	uid := ensure(t, b, "again", limited(64<<20))
	first := await(t, b, uid, "running", running)
	stray := exec.Command("sleep", "600")
	must(t, stray.Start())
	t.Cleanup(func() { _ = stray.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }() // ends with the process
	files := groupFiles(t, b, uid, "c", "cgroup.procs")
	if len(files) == 0 {
		t.Fatal("the container has no control group")
	}
	for _, file := range files {
		must(t, os.WriteFile(file, []byte(strconv.Itoa(stray.Process.Pid)), 0))
	}
	must(t, syscall.Kill(parent(t, int(pids(first)["c"])), syscall.SIGKILL))
	_, err := b.Host().EnsureSandbox(t.Context(), &sandboxhostv1.EnsureSandboxRequest{
		Uid: uid, Name: "again", Generation: 2, Manager: "local", Spec: limited(32 << 20),
	})
	must(t, err)
	now := await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool {
		return running(s) && s.GetAttempt() > 1 && s.GetContainers()[0].GetLimits().GetMemoryLimitBytes() == 32<<20
	})
	pid := strconv.Itoa(int(pids(now)["c"]))
	for _, file := range groupFiles(t, b, uid, "c", "cgroup.procs") {
		raw, err := os.ReadFile(file)
		must(t, err)
		if members := strings.Fields(string(raw)); len(members) > 0 && !slices.Equal(members, []string{pid}) {
			t.Errorf("%s holds %v, want %s alone", file, members, pid)
		}
	}
	for _, file := range slices.Concat(groupFiles(t, b, uid, "c", "memory.limit_in_bytes"), groupFiles(t, b, uid, "c", "memory.max")) {
		if raw, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(raw)) != strconv.Itoa(32<<20) {
			t.Errorf("%s: got %q, %v, want the new limit", file, raw, err)
		}
	}
	bed.Eventually(t, waitLong, "the process that was left has been ended", func(context.Context) (bool, string) {
		select {
		case err := <-ended:
			return err != nil, fmt.Sprint(err)
		default:
			return false, "it lives"
		}
	})
	remove(t, b, uid)
	settled(t, b)
}

// TestNode_LIF5_KillsForMemoryAreToldEveryTime has 8 runs of each case at once instead of 50.
func TestNode_LIF5_KillsForMemoryAreToldEveryTime(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	limit := int64(32 << 20)
	type outcome struct {
		args []string
		done func(*resourcev1.SandboxStatus) bool
		ok   func(*resourcev1.SandboxStatus) bool
	}
	exit := func(s *resourcev1.SandboxStatus, code uint32, main bool) bool {
		return len(s.GetExits()) == 1 && s.GetExits()[0].GetCode() == code && s.GetExits()[0].GetOomKilled() == main && s.GetExits()[0].GetOomKills() == 1
	}
	counted := func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetContainers()[0].GetOomKills() == 1 }
	uids := map[string]outcome{}
	for i := range 8 {
		for name, o := range map[string]outcome{
			"main":  {[]string{"eat", "200000000"}, ended, func(s *resourcev1.SandboxStatus) bool { return exit(s, 137, true) }},
			"child": {[]string{"feed", "200000000"}, counted, counted},
			"both":  {[]string{"feed", "200000000", "0"}, ended, func(s *resourcev1.SandboxStatus) bool { return exit(s, 0, false) }},
		} {
			c := probe("c", o.args...)
			c.Limits = &resourcev1.ResourceLimits{MemoryLimitBytes: &limit}
			uids[ensure(t, b, fmt.Sprintf("%s-%d", name, i), spec(never, c))] = o
		}
	}
	for uid, o := range uids {
		if got := await(t, b, uid, "to tell of the kill", o.done); !o.ok(got) {
			t.Errorf("%v: got %v", o.args, got)
		}
	}
	for uid := range uids {
		remove(t, b, uid)
	}
	settled(t, b)
}
