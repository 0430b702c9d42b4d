package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/follow"
	"staddle.internal/cli/internal/sandbox"
	"staddle.internal/cli/internal/target"
)

// The first sandbox: a small web server that lies beside the binaries.
const (
	helloArchive = "hello.tar"
	helloImage   = "staddle.local/hello:1"
	helloName    = "hello"
	helloPort    = "8080"
)

// helloLimit bounds the start of the first sandbox.
const helloLimit = time.Minute

// firstSandbox shows that everything works: an image, a sandbox, an answer over
// its network, and its output.
func (m *Machine) firstSandbox(ctx context.Context, cluster *target.Cluster) (err error) {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	settings, err := target.Load(target.Flags{Root: m.Paths.Root, System: true})
	if err != nil {
		return err
	}
	host, err := settings.Node(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	if there, err := m.ensureImage(ctx, host); err != nil || !there {
		return err
	}
	s, err := m.ensureHello(ctx, cluster)
	if err != nil {
		return exit.Try(err, "staddle get sandbox %s -o yaml", helloName)
	}
	if s == nil {
		return nil
	}
	if err := m.showPage(ctx, s.Status.GetAddresses()); err != nil {
		return err
	}
	if err := m.showLogs(ctx, host, s.UID); err != nil {
		return err
	}
	_, err = fmt.Fprint(m.Out, m.next())
	return err
}

// next are commands to go on with, as this person can give them: sockets of this
// machine are open to root, and to others only by a group.
func (m *Machine) next() string {
	command, sudo := m.binary("staddle"), ""
	if m.Paths.Root == "" && linked(systemCommand, command) {
		command = "staddle"
	}
	if m.Home != nil && m.Home.UID > 0 {
		sudo = "sudo "
	}
	command = strings.Join(append([]string{command}, m.rooted()...), " ")
	return fmt.Sprintf("\nNext:\n  %s ps\n  %s%s logs -f %s\n  %s%s status\n", command, sudo, command, helloName, sudo, command)
}

// ensureImage imports the archive unless the image is there. Without an archive
// there is no first sandbox, which is said and is no failure.
func (m *Machine) ensureImage(ctx context.Context, host *target.Node) (bool, error) {
	images, err := host.Images(ctx)
	if err != nil {
		return false, err
	}
	for _, i := range images {
		if i.GetName() == helloImage {
			return true, nil
		}
	}
	archive, err := os.Open(filepath.Join(m.Source, helloArchive))
	if errors.Is(err, os.ErrNotExist) {
		m.say("there is no %s beside staddle, so no first sandbox is made", helloArchive)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("import image: %w", err)
	}
	_, err = host.Import(ctx, archive, func(int64) {})
	if err = errors.Join(err, archive.Close()); err != nil {
		return false, err
	}
	m.say("imported image %s", helloImage)
	return true, nil
}

// ensureHello creates the sandbox unless there is one of its name, and waits
// until it runs. It returns nil for one that somebody stopped.
func (m *Machine) ensureHello(ctx context.Context, cluster *target.Cluster) (*sandbox.Sandbox, error) {
	r, err := cluster.ByName(ctx, resourcev1.Kind_KIND_SANDBOX, helloName)
	var s sandbox.Sandbox
	created := false
	switch {
	case fault.KindOf(err) == fault.NotFound:
		if s, err = cluster.Create(ctx, helloName, nil, helloSpec()); err != nil {
			return nil, err
		}
		m.say("created sandbox %s", helloName)
		created = true
	case err != nil:
		return nil, err
	default:
		s = sandbox.FromRecord(r)
		m.say("sandbox %s is there already", helloName)
	}
	return m.helloRuns(ctx, cluster, s, created)
}

// helloRuns waits until the sandbox runs and has its address.
func (m *Machine) helloRuns(ctx context.Context, cluster *target.Cluster, s sandbox.Sandbox, created bool) (*sandbox.Sandbox, error) {
	for {
		if s.Running() && len(s.Status.GetAddresses()) > 0 {
			return &s, nil
		}
		if s.AtRest() || s.Removing {
			m.say("sandbox %s does not run: %s; try: staddle start %s", helloName, s.Why(), helloName)
			return nil, nil
		}
		// One that was there may have died with the machine; its policy starts it again.
		if why, failed := s.Failed(); failed && created {
			return nil, fault.New(fault.Internal, "start sandbox %s: %s", helloName, why)
		}
		if err := backoff.Wait(ctx, pollPeriod); err != nil {
			return nil, fault.New(fault.Unavailable, "start sandbox %s: does not run in time: %s", helloName, s.Why())
		}
		var err error
		if s, err = cluster.Get(ctx, s.UID); err != nil {
			return nil, err
		}
	}
}

func helloSpec() *resourcev1.SandboxSpec {
	return &resourcev1.SandboxSpec{
		Desired:       resourcev1.DesiredState_DESIRED_STATE_RUNNING,
		RestartPolicy: resourcev1.RestartPolicy_RESTART_POLICY_ALWAYS,
		Containers: []*resourcev1.ContainerSpec{{
			Name: "web", Image: helloImage,
			Limits: &resourcev1.ResourceLimits{MemoryLimitBytes: new(int64(64 << 20)), PidsLimit: new(int64(64))},
		}},
	}
}

// showPage fetches the page until the server inside listens. No proxy of the
// environment may come between: the address is on this machine.
func (m *Machine) showPage(ctx context.Context, addresses []string) error {
	url := "http://" + net.JoinHostPort(addresses[0], helloPort) + "/"
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for tries := 1; ; tries++ {
		page, err := fetch(ctx, client, url)
		if err == nil {
			_, err = fmt.Fprintf(m.Out, "\n$ curl %s\n%s\n", url, bytes.TrimSpace(page))
			return err
		}
		if waitErr := backoff.Wait(ctx, 2*pollPeriod); waitErr != nil || tries > 100 {
			return exit.Try(fault.New(fault.Unavailable, "fetch the page of sandbox %s: %w", helloName, err), "staddle logs %s", helloName)
		}
	}
}

func fetch(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answer %s", resp.Status)
	}
	return body, nil
}

func (m *Machine) showLogs(ctx context.Context, host *target.Node, uid string) error {
	if _, err := fmt.Fprintf(m.Out, "\n$ staddle logs %s\n", helloName); err != nil {
		return err
	}
	return follow.Run(ctx, host, follow.Request{UID: uid, Container: "web"}, follow.Output{Stdout: m.Out, Stderr: m.Out})
}
