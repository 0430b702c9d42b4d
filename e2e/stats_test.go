package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

func statsOf(b *bed.Bed) sandboxhostv1.StatsServiceClient {
	return sandboxhostv1.NewStatsServiceClient(b.Conn("sandboxhost"))
}

// meter compares each reading of one sandbox with the one before of the same attempt.
type meter struct {
	uid    string
	before *sandboxhostv1.SandboxStats
	values int // shares of a processor that were seen
}

// take checks one reading: counters only grow, and no share is above most.
func (m *meter) take(t *testing.T, now *sandboxhostv1.SandboxStats, most float64) {
	t.Helper()
	before := m.before
	m.before = now
	if before == nil || now == nil || before.GetAttempt() != now.GetAttempt() {
		return
	}
	was, is := before.GetUsage(), now.GetUsage()
	if was == nil || is == nil || was.CpuUsageNanoseconds == nil || is.CpuUsageNanoseconds == nil {
		return // absent, which is right
	}
	passed := is.GetReadSinceBoot().AsDuration() - was.GetReadSinceBoot().AsDuration()
	if passed <= 0 || is.GetCpuUsageNanoseconds() < was.GetCpuUsageNanoseconds() {
		t.Errorf("attempt %d went back: %v, then %v", now.GetAttempt(), was, is)
		return
	}
	if passed < 500*time.Millisecond {
		m.before = before // the limit is for a tenth of a second: too short to tell
		return
	}
	m.values++
	if share := float64(is.GetCpuUsageNanoseconds()-was.GetCpuUsageNanoseconds()) / float64(passed); share > most {
		t.Errorf("attempt %d used %.2f of a processor in %v, it may use %.2f", now.GetAttempt(), share, passed, most)
	}
}

// follow takes readings until there are some more with a value.
func (m *meter) follow(t *testing.T, b *bed.Bed, more int, most float64) {
	t.Helper()
	enough := m.values + more
	bed.Eventually(t, time.Minute, fmt.Sprintf("%d readings", enough), func(ctx context.Context) (bool, string) {
		stream, err := statsOf(b).WatchStats(ctx, &sandboxhostv1.WatchStatsRequest{Uid: m.uid, Interval: durationpb.New(time.Second)})
		if err != nil {
			return false, err.Error()
		}
		for m.values < enough {
			round, err := stream.Recv()
			if err != nil {
				return false, fmt.Sprintf("%d readings, %v", m.values, err)
			}
			for _, s := range round.GetSandboxes() {
				m.take(t, s, most)
			}
		}
		return true, ""
	})
}

// TestNode_MET2_NoSpikes has a sandbox that uses half a processor, and kills it, who
// reads, and who runs it, and has the reader stand still. Other tests may leave it
// less than that half; more, or less than nothing, it never used.
func TestNode_MET2_NoSpikes(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	c := probe("c", "burn")
	c.Limits = &resourcev1.ResourceLimits{CpuLimitMillicores: new(int64(500))}
	uid := ensure(t, b, "half", spec(always, c))
	first := await(t, b, uid, "running", running)
	const most = 0.62 // half, one period of a tenth of a second at each end, and what is on its way when it is throttled
	m := &meter{uid: uid}
	m.follow(t, b, 3, most)

	signal(t, first, syscall.SIGKILL)
	await(t, b, uid, "running again", func(s *resourcev1.SandboxStatus) bool { return running(s) && s.GetAttempt() > first.GetAttempt() })
	m.follow(t, b, 2, most)
	attempt := m.before.GetAttempt()
	if attempt <= first.GetAttempt() {
		t.Errorf("got figures of attempt %d", attempt)
	}
	for _, who := range []string{"sandboxhost", "containerd"} {
		b.Kill(who)
		b.WaitReady()
		m.follow(t, b, 2, most)
	}
	if m.before.GetAttempt() != attempt {
		t.Errorf("the workload is in attempt %d, was in %d", m.before.GetAttempt(), attempt)
	}
	pid := b.PID("sandboxhost")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.After(4 * time.Second)
	select {
	case <-stopped:
	case <-t.Context().Done():
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) { // or it was ended for not being live
		t.Fatal(err)
	}
	b.WaitReady()
	m.follow(t, b, 2, most)
	removeAll(t, b, uid)
	settled(t, b)
}

// TestNode_MET3_PageCacheIsNoUse has a sandbox read a large file twice, so that the kernel
// keeps all of it.
func TestNode_MET3_PageCacheIsNoUse(t *testing.T) {
	const size = 256 << 20
	b, _ := alone(t, bed.Options{})
	uid := ensure(t, b, "reads", spec(always, probe("c", "cache", "/file", fmt.Sprint(size))))
	await(t, b, uid, "running", running)
	bed.Eventually(t, time.Minute, "the file was read", func(context.Context) (bool, string) {
		said := output(t, b, uid, "c", 1)
		return strings.Contains(said, "cached"), said
	})
	got, err := statsOf(b).GetStats(t.Context(), &sandboxhostv1.GetStatsRequest{Uid: uid})
	if err != nil || len(got.GetSandboxes()) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	for what, u := range map[string]*sandboxhostv1.Usage{"sandbox": got.GetSandboxes()[0].GetUsage(), "container": got.GetSandboxes()[0].GetContainers()[0].GetUsage()} {
		if u.MemoryWorkingSetBytes == nil || u.GetMemoryWorkingSetBytes() > 50<<20 || u.GetMemoryUsageBytes() < size/2 {
			t.Errorf("%s: got %v, want a working set of a few MiB beside %d bytes of cache", what, u, size)
		}
	}
	removeAll(t, b, uid)
	settled(t, b)
}

// prometheus asks as a program of the machine does.
func prometheus(b *bed.Bed) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return b.Dial(config.MetricsDefault) },
	}}
}

// collected asks once for all series. One sandbox must be there, another not.
func collected(ctx context.Context, c *http.Client, there, not string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+config.MetricsDefault+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	text := string(body)
	if resp.StatusCode != http.StatusOK || strings.Contains(text, not) || !strings.Contains(text, "\nstaddle_node_cpus{") {
		return fmt.Errorf("collector was answered %d: %s", resp.StatusCode, text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "staddle_sandbox_cpu_time_seconds_total{") && strings.Contains(line, there) {
			return nil
		}
	}
	return fmt.Errorf("collector was not told of %s: %s", there, text)
}

// TestNode_MET4_NobodyIsMissedForAnother asks again and again while sandboxes come and go,
// one has never started, and one ends all the time.
func TestNode_MET4_NobodyIsMissedForAnother(t *testing.T) {
	b, _ := alone(t, bed.Options{})
	if r, err := statsOf(b).GetStats(t.Context(), &sandboxhostv1.GetStatsRequest{}); err != nil || len(r.GetSandboxes()) != 0 || r.GetNode().GetMachine().GetCpuUsageNanoseconds() == 0 {
		t.Errorf("of no sandboxes: got %v, %v", r, err)
	}
	steady := ensure(t, b, "steady", spec(always, probe("c", "serve", "80")))
	await(t, b, steady, "running", running)
	unstarted := ensure(t, b, "unstarted", spec(always, &resourcev1.ContainerSpec{Name: "c", Image: "127.0.0.1:1/none:1"}))
	ends := ensure(t, b, "ends", spec(always, probe("c", "exit", "1")))

	ctx, stop := context.WithCancel(t.Context())
	collector := prometheus(b)
	asked, failed := 0, make(chan error, 1)
	go func() { // ends with ctx, and is waited for
		failed <- func() error {
			for clock := time.NewTicker(50 * time.Millisecond); ; {
				select {
				case <-clock.C:
				case <-ctx.Done():
					return nil
				}
				r, err := statsOf(b).GetStats(ctx, &sandboxhostv1.GetStatsRequest{})
				switch {
				case ctx.Err() != nil: // the answer may have been cut
					continue
				case err != nil:
					return fmt.Errorf("question %d: %w", asked, err)
				}
				found := false
				for _, s := range r.GetSandboxes() {
					if s.GetUid() == unstarted {
						return fmt.Errorf("question %d: got %v of one that has not started", asked, s)
					}
					found = found || s.GetUid() == steady && s.GetUsage() != nil && s.GetUsage().CpuUsageNanoseconds != nil && s.GetNetwork() != nil
				}
				if !found {
					return fmt.Errorf("question %d: the steady one is missing: %v", asked, r)
				}
				if err := collected(ctx, collector, steady, unstarted); err != nil && ctx.Err() == nil {
					return fmt.Errorf("question %d: %w", asked, err)
				}
				asked++
			}
		}()
	}()
	for range 4 {
		var uids []string
		for i := range 5 {
			uids = append(uids, ensure(t, b, fmt.Sprint("passing-", i), spec(always, probe("c", "sleep"))))
		}
		await(t, b, uids[0], "running", running)
		removeAll(t, b, uids...)
	}
	stop()
	if err := <-failed; err != nil || asked < 10 {
		t.Errorf("after %d answers: %v", asked, err)
	}
	if _, err := statsOf(b).GetStats(t.Context(), &sandboxhostv1.GetStatsRequest{Uid: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of a sandbox that is not there: got %v", err)
	}

	// Whoever asks while the process is killed waits for the next one.
	b.Kill("sandboxhost")
	if err := collected(t.Context(), collector, steady, unstarted); err != nil {
		t.Errorf("after a kill: %v", err)
	}
	b.WaitReady()

	// The same for people.
	table := b.OK("--node-socket", b.HostSocket(), "top")
	if !strings.Contains(table, "steady") || !strings.Contains(table, "(machine)") || !strings.Contains(table, "%") {
		t.Errorf("staddle top:\n%s", table)
	}
	var records []map[string]any
	if text := b.OK("--node-socket", b.HostSocket(), "top", "-o", "json"); json.Unmarshal([]byte(text), &records) != nil || len(records) < 2 {
		t.Errorf("staddle top -o json:\n%s", text)
	}
	removeAll(t, b, steady, unstarted, ends)
	settled(t, b)
}
