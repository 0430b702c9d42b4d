package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/fault"
	clusteraccessv1 "staddle.internal/proto/gen/staddle/clusteraccess/v1"
	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"
	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"
)

// receiver is what all streams of answers have.
type receiver[T any] interface{ Recv() (T, error) }

// stream opens a stream and returns how to take its next message.
type stream func(ctx context.Context) (next func() error, err error)

// of makes a stream of a method.
func of[T any, S receiver[T]](open func(ctx context.Context) (S, error)) stream {
	return func(ctx context.Context) (func() error, error) {
		s, err := open(ctx)
		return func() error { _, err := s.Recv(); return err }, err
	}
}

// ourProcesses are the components of a machine that speak our contracts.
var ourProcesses = []string{"coordinator", "clusteraccess", "storage", "sandboxhost", "sandbox-agent", "storage-agent", "presence"}

// streamsOf are the streams of one process, by name: its own, and the one of
// health, which every process has.
func streamsOf(b *bed.Bed, process, uid string) map[string]stream {
	all := map[string]stream{process + " health": of(func(ctx context.Context) (receiver[*grpc_health_v1.HealthCheckResponse], error) {
		return grpc_health_v1.NewHealthClient(b.Conn(process)).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	})}
	switch process {
	case "coordinator":
		all["coordinator records"] = of(func(ctx context.Context) (receiver[*coordinatorv1.WatchResourcesResponse], error) {
			return b.Records().WatchResources(ctx, &coordinatorv1.WatchResourcesRequest{})
		})
	case "clusteraccess":
		access := clusteraccessv1.NewClusterAccessServiceClient(b.Conn(process))
		all["clusteraccess records"] = of(func(ctx context.Context) (receiver[*clusteraccessv1.WatchResourcesResponse], error) {
			return access.WatchResources(ctx, &clusteraccessv1.WatchResourcesRequest{})
		})
		all["clusteraccess authority"] = of(func(ctx context.Context) (receiver[*clusteraccessv1.WatchAuthorityResponse], error) {
			return access.WatchAuthority(ctx, &clusteraccessv1.WatchAuthorityRequest{})
		})
	case "sandboxhost":
		all["sandboxhost sandboxes"] = of(func(ctx context.Context) (receiver[*sandboxhostv1.WatchSandboxesResponse], error) {
			return b.Host().WatchSandboxes(ctx, &sandboxhostv1.WatchSandboxesRequest{})
		})
		for i := range 3 {
			all[fmt.Sprintf("sandboxhost log follow %d", i)] = of(func(ctx context.Context) (receiver[*sandboxhostv1.ReadLogsResponse], error) {
				return b.Host().ReadLogs(ctx, &sandboxhostv1.ReadLogsRequest{Uid: uid, Container: "main", Attempt: 1, Follow: true})
			})
		}
	case "presence":
		all["presence"] = of(func(ctx context.Context) (receiver[*presencev1.WatchPresenceResponse], error) {
			return presencev1.NewPresenceServiceClient(b.Conn(process)).WatchPresence(ctx, &presencev1.WatchPresenceRequest{})
		})
	case "supervisor":
		all["supervisor graph"] = of(func(ctx context.Context) (receiver[*supervisorv1.WatchGraphResponse], error) {
			return supervisorv1.NewSupervisorServiceClient(b.Conn(process)).WatchGraph(ctx, &supervisorv1.WatchGraphRequest{})
		})
	}
	return all
}

// heldStreams are streams that are read to their ends.
type heldStreams struct {
	names []string
	ends  map[string]chan error
}

// hold opens streams, takes one message of each, and goes on to read them.
func hold(t *testing.T, b *bed.Bed, uid string, processes ...string) heldStreams {
	t.Helper()
	h := heldStreams{ends: map[string]chan error{}}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for _, process := range processes {
		for name, open := range streamsOf(b, process, uid) {
			var next func() error
			bed.Eventually(t, waitLong, name+" is served", func(context.Context) (bool, string) {
				var err error
				if next, err = open(ctx); err == nil {
					err = next()
				}
				return err == nil, fmt.Sprint(err)
			})
			end := make(chan error, 1)
			go func() { // ends with the stream, at the latest with ctx
				var err error
				for err == nil {
					err = next()
				}
				end <- err
			}()
			h.names, h.ends[name] = append(h.names, name), end
		}
	}
	return h
}

// told checks that every stream ends soon, and says that its server is not
// available: no hang, and no end that looks like all was said.
func (h heldStreams) told(t *testing.T, who string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for _, name := range h.names {
		select {
		case err := <-h.ends[name]:
			if errors.Is(err, io.EOF) || fault.KindOf(err) != fault.Unavailable {
				t.Errorf("%s stopped, stream %s: got %v (%v), want Unavailable", who, name, err, fault.KindOf(err))
			}
		case <-limit:
			t.Errorf("%s stopped: stream %s hangs", who, name)
		}
	}
}

// terminate ends a process as an operator would and says how long it took.
func terminate(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, 10*time.Second, fmt.Sprintf("process %d ends", pid), gone(pid))
}

// UDS-3: a process that is asked to end does, whatever streams are open, and says
// so on each; the next one serves the same streams. The case's execs are left out:
// the product has none.
func TestMachine_UDS3_StopsUnderOpenStreams(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	apply(t, b, sandboxYAML("web", "count, 1ms", ""))
	awaitPhase(t, b, "web", "RUNNING")
	host := onHost(t, b, "web")
	uid := host.GetUid()
	// A person follows all the time.
	var followed bed.Text
	follower := b.StartCLITo(&followed, "logs", "--follow", "web")
	ended := make(chan error, 1)
	go func() { ended <- follower.Wait() }() // it ends when the sandbox is removed

	for _, process := range ourProcesses {
		open := hold(t, b, uid, process)
		terminate(t, b.PID(process))
		open.told(t, process)
		b.WaitReady()
		hold(t, b, uid, process)
	}
	all := hold(t, b, uid, append(ourProcesses, "supervisor")...)
	began := time.Now()
	if err := supervisor.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, 20*time.Second, "the whole runner ends", runnerGone(b))
	t.Logf("the whole runner ended in %v", time.Since(began).Round(time.Millisecond))
	all.told(t, "the runner")
	b.Start()
	b.WaitReady()
	hold(t, b, uid, append(ourProcesses, "supervisor")...)

	if now := await(t, b, uid, "running", running); sprint(pids(now)) != sprint(pids(host.GetStatus())) {
		t.Errorf("the sandbox was touched: %v, want %v", now, host.GetStatus())
	}
	was := counted(t, output(t, b, uid, "main", 1))
	bed.Eventually(t, waitLong, "output goes on", moreThan(t, b, uid, "main", was))
	bed.Eventually(t, waitLong, "the follower has caught up", func(context.Context) (bool, string) {
		n := strings.Count(followed.String(), "\n")
		return n > was, strconv.Itoa(n)
	})
	b.OK("rm", "web")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("logs --follow: %v", err)
		}
		counted(t, followed.String())
	case <-time.After(time.Minute):
		t.Error("logs --follow did not end with the sandbox")
	}
}

// runnerGone asks whether no process of ours runs any more.
func runnerGone(b *bed.Bed) func(context.Context) (bool, string) {
	return func(context.Context) (bool, string) {
		var left []string
		for pid, name := range b.Processes() {
			if strings.HasPrefix(name, "staddle-") {
				left = append(left, fmt.Sprintf("%s %d", name, pid))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	}
}

// UDS-1: whatever a crash or a mistake left at the paths of the sockets, the next
// start serves there, but for what is not ours to remove: that is named.
func TestNode_UDS1_LeftOverSockets(t *testing.T) {
	b, supervisor := machine(t, bed.Options{})
	b.KillRunner(supervisor, false)
	for i, process := range ourProcesses {
		path := b.Paths.Socket(process)
		switch i % 3 {
		case 0: // the dead socket of the process that was killed
		case 1:
			must(t, os.Remove(path))
			must(t, os.Symlink("/nowhere", path))
		case 2:
			must(t, os.Remove(path))
			l := b.ListenAt("unix", path)
			l.(*net.UnixListener).SetUnlinkOnClose(false) // as if its process had been killed
			must(t, l.Close())
		}
	}
	supervisor = b.Start()
	b.WaitReady()

	// Neither a plain file nor somebody else's socket is removed.
	b.KillRunner(supervisor, false)
	plain, foreign := b.Paths.Socket("sandbox-agent"), b.Paths.Socket("presence")
	must(t, errors.Join(os.Remove(plain), os.WriteFile(plain, []byte("mine"), 0o600), os.Remove(foreign)))
	other := b.ListenAt("unix", foreign)
	supervisor = b.Start()
	notStarted(t, b, "sandbox-agent", plain, "plain file", "remove it")
	if raw, err := os.ReadFile(plain); err != nil || string(raw) != "mine" {
		t.Errorf("the plain file holds %q, %v", raw, err)
	}
	must(t, os.Remove(plain))
	notStarted(t, b, "presence", foreign, fmt.Sprintf("served by pid %d", os.Getpid()))
	conn, err := net.Dial("unix", foreign)
	if err != nil {
		t.Fatalf("somebody else's socket is not reached any more: %v", err)
	}
	must(t, errors.Join(conn.Close(), other.Close()))
	b.WaitReady()

	// The supervisor's own place.
	b.KillRunner(supervisor, false)
	own := b.Paths.Socket("supervisor")
	must(t, errors.Join(os.Remove(own), os.WriteFile(own, nil, 0o600)))
	if r := b.Program("staddle-node", "supervisor", "--root", b.Paths.Root); r.Code == 0 || !strings.Contains(r.Stderr, own) || !strings.Contains(r.Stderr, "plain file") {
		t.Errorf("supervisor with a plain file in its place: exit code %d\n%s", r.Code, r.Stderr)
	}
	must(t, os.Remove(own))
	b.Start()
	b.WaitReady()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// notStarted waits until a component says that it is not started for what is in the
// place of its socket.
func notStarted(t *testing.T, b *bed.Bed, process string, says ...string) {
	t.Helper()
	bed.Eventually(t, waitLong, process+" says what is in its place", func(ctx context.Context) (bool, string) {
		graph, err := b.Graph(ctx)
		if err != nil {
			return false, err.Error()
		}
		c := graph[process]
		ok := c.GetPid() == 0
		for _, text := range says {
			ok = ok && strings.Contains(c.GetReason(), text)
		}
		return ok, c.String()
	})
}
