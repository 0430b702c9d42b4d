package command_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// fakeStats sends three rounds, and waits.
type fakeStats struct {
	sandboxhostv1.UnimplementedStatsServiceServer
	asked time.Duration
}

func (f *fakeStats) WatchStats(r *sandboxhostv1.WatchStatsRequest, stream grpc.ServerStreamingServer[sandboxhostv1.WatchStatsResponse]) error {
	f.asked = r.GetInterval().AsDuration()
	usage := func(second, cpu uint64) *sandboxhostv1.Usage {
		memory, pids := uint64(20<<20), uint64(3)
		return &sandboxhostv1.Usage{
			ReadSinceBoot: durationpb.New(time.Duration(second) * time.Second), CpuUsageNanoseconds: &cpu, MemoryWorkingSetBytes: &memory, Pids: &pids,
		}
	}
	for second := range uint64(3) {
		node := &sandboxhostv1.NodeStats{Machine: usage(second, second*2e9), Cpus: 2}
		steady := &sandboxhostv1.SandboxStats{
			Uid: "A", Name: "steady", Attempt: 1, Usage: usage(second, 7e9+second*5e8), Network: &sandboxhostv1.NetworkUsage{ReceivedBytes: 1024, SentBytes: 2048},
		}
		again := &sandboxhostv1.SandboxStats{Uid: "B", Name: "again", Attempt: second, Usage: usage(second, 1e9-second)}
		unread := &sandboxhostv1.SandboxStats{Uid: "C", Name: "unread", Attempt: 1}
		for _, part := range []*sandboxhostv1.WatchStatsResponse{
			{Node: node, Sandboxes: []*sandboxhostv1.SandboxStats{steady}}, {Sandboxes: []*sandboxhostv1.SandboxStats{again, unread}, Complete: true},
		} {
			if err := stream.Send(part); err != nil {
				return err
			}
		}
	}
	<-stream.Context().Done()
	return nil
}

// lineOf is the line of a table that begins with a name, its cells joined by one space.
func lineOf(t *testing.T, table, name string) string {
	t.Helper()
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
			return strings.Join(fields, " ")
		}
	}
	t.Errorf("no line of %s in\n%s", name, table)
	return ""
}

func TestTop(t *testing.T) {
	h := newHost(t)
	node := func(args ...string) result {
		return cli(t, append([]string{"--node-socket", h.path, "top"}, args...)...)
	}
	got := node()
	want(t, got, 0)
	if h.stats.asked != time.Second {
		t.Errorf("asked every %v", h.stats.asked)
	}
	for name, line := range map[string]string{
		"(machine)": "(machine) 200.0 % 20.0 MiB - 3 - - - - -",
		"steady":    "steady 50.0 % 20.0 MiB - 3 - - 1.0 KiB 2.0 KiB -",
		"again":     "again - 20.0 MiB - 3 - - - - -", // another attempt is not compared
		"unread":    "unread - - - - - - - - -",
	} {
		if got := lineOf(t, got.out, name); got != line {
			t.Errorf("got %q, want %q", got, line)
		}
	}
	got = node("--watch", "-n", "2", "--interval", "3s")
	want(t, got, 0)
	if n := strings.Count(got.out, "steady"); n != 2 || h.stats.asked != 3*time.Second {
		t.Errorf("%d tables every %v:\n%s", n, h.stats.asked, got.out)
	}
	want(t, node("-o", "json"), 0, `"cpu_usage_nanoseconds"`, `"steady"`)
	want(t, node("-w", "--interval", "1ms"), 2, "1s to 1h")
	want(t, node("-w", "-n", "-1"), 2, "0 or more")
}
