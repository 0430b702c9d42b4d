package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
)

// An operator of another machine runs commands through the gateway of the node; nobody else
// does; and what she runs ends when the network between them is cut. (EXE-3)
func TestExec_EXE3_ThroughTheGateway(t *testing.T) {
	far, b := afar(t)
	apply(t, far, sandboxYAML("web", "serve, 127.0.0.1:7000", ""))
	awaitPhase(t, far, "web", "RUNNING")
	if r := far.CLIWith(strings.NewReader("across"), "exec", "-i", "web", "--", "probe", "cat"); r.Code != 0 || r.Stdout != "across" {
		t.Errorf("got code %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLI("exec", "web", "--", "probe", "exit", "7"); r.Code != 7 {
		t.Errorf("got code %d, %s, want 7", r.Code, r.Stderr)
	}
	pki := far.Paths.Etc() + "/pki/"
	if r := far.CLI("exec", "web", "--cert", pki+"node.crt", "--key", pki+"node.key", "--", "probe", "where"); r.Code != 125 {
		t.Errorf("as a node: got code %d, %q, %s, want 125", r.Code, r.Stdout, r.Stderr)
	}
	processes := func(want int, limit time.Duration, what string) {
		t.Helper()
		bed.Eventually(t, limit, what, func(context.Context) (bool, string) {
			n := len(b.Workloads())
			return n == want, fmt.Sprintf("%d processes, want %d", n, want)
		})
	}
	ports := far.Begin("port-forward", "web", ":7000")
	from := forwards(t, ports, 1)[0]
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if back, err := echoed(far, from, large); err != nil || !bytes.Equal(back, large) {
		t.Errorf("a forwarded port: got %d bytes, %v, want %d back", len(back), err, len(large))
	}
	read := holding(t, far, from)
	stranger := far.Begin("port-forward", "web", ":7000", "--cert", pki+"node.crt", "--key", pki+"node.key")
	if back, err := echoed(far, forwards(t, stranger, 1)[0], []byte("x")); !broke(err) {
		t.Errorf("a forwarded port, as a node: got %q, %v, want a reset", back, err)
	}
	if r := stranger.Wait(); r.Code != 6 {
		t.Errorf("a forward as a node: got code %d, %s, want 6", r.Code, r.Stderr)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, large, 0o600))
	if r := far.CLI("cp", file, "web:/tmp"); r.Code != 0 {
		t.Errorf("a copy in: got code %d, %s", r.Code, r.Stderr)
	}
	if r := far.CLI("cp", "web:/tmp/file", file+".back"); r.Code != 0 {
		t.Errorf("a copy out: got code %d, %s", r.Code, r.Stderr)
	}
	if back, err := os.ReadFile(file + ".back"); err != nil || !bytes.Equal(back, large) {
		t.Errorf("a copy there and back: got %d bytes, %v, want %d", len(back), err, len(large))
	}
	if r := far.CLI("cp", "web:/tmp/file", "-", "--cert", pki+"node.crt", "--key", pki+"node.key"); r.Code != 6 || r.Stdout != "" {
		t.Errorf("a copy as a node: got code %d, %d bytes, %s, want 6", r.Code, len(r.Stdout), r.Stderr)
	}
	apply(t, far, strings.Replace(sandboxYAML("reader", "cat", "  restart_policy: never\n"), "args:", "stdin: true, args:", 1))
	awaitPhase(t, far, "reader", "RUNNING")
	if r := far.CLI("attach", "reader", "--no-stdin", "--cert", pki+"node.crt", "--key", pki+"node.key"); r.Code != 125 {
		t.Errorf("attached as a node: got code %d, %q, %s, want 125", r.Code, r.Stdout, r.Stderr)
	}
	if r := far.CLIWith(bytes.NewReader(large), "attach", "reader"); r.Code != 0 || r.Stdout != string(large) {
		t.Errorf("attached: got code %d, %d bytes, %s, want 0 and %d", r.Code, len(r.Stdout), r.Stderr, len(large))
	}
	far.OK("delete", "sandbox", "reader")
	processes(1, waitLong, "the one that was attached to is gone")
	client := far.Begin("exec", "web", "--", "probe", "trap", "1", "0")
	bed.Eventually(t, waitLong, "it is ready", func(context.Context) (bool, string) { return client.Stdout() == "ready\n", client.Stdout() })
	clients := []*bed.Running{client}
	for range times - 1 {
		clients = append(clients, far.Begin("exec", "-i", "web", "--", "probe", "sleep"))
	}
	processes(1+times, waitLong, "they run")
	b.Cut()
	processes(1, 30*time.Second, "they are ended when their clients are cut off")
	for _, client := range clients {
		if r := client.Wait(); r.Code != 125 {
			t.Errorf("of one that was cut off: got code %d, %s, want 125", r.Code, r.Stderr)
		}
	}
	if err := read(); !broke(err) {
		t.Errorf("a forwarded port that was cut off: got %v, want a reset", err)
	}
	ports.Interrupt()
	if r := ports.Wait(); r.Code != 128+2 {
		t.Errorf("a forward that was interrupted: got code %d, %s, want 130", r.Code, r.Stderr)
	}
	if r := far.CLI("describe", "web"); r.Code != 0 || !strings.Contains(r.Stdout, "RUNNING") || strings.Count(r.Stdout, "\nEvents are not known: reach ") != 1 {
		t.Errorf("described while its node is cut off: got code %d, %s, %s", r.Code, r.Stdout, r.Stderr)
	}
	b.Mend()
}

// pty opens a pair of ends of a terminal.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// The terminal of a person is as it was after every end of a command that had it. (EXE-5)
func TestExec_EXE5_TheTerminalIsRestored(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	master, slave := pty(t)
	must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 77}))
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	must(t, err)
	for _, c := range []struct {
		name string
		end  func(cmd *bed.Running)
		code int
	}{
		{"Ctrl-C as a key", func(*bed.Running) { _, err := master.WriteString("\x03"); must(t, err) }, 128 + 2},
		{"signals to the command", func(cmd *bed.Running) {
			for range 3 {
				cmd.Interrupt()
			}
		}, 128 + 2},
		{"a kill of the host", func(*bed.Running) { e.b.Kill("sandboxhost") }, 125},
	} {
		cmd := e.b.BeginIn(slave, e.args([]string{"-i", "-t"}, "probe", "size")...)
		bed.Eventually(t, waitLong, c.name+": the size of the terminal", func(context.Context) (bool, string) {
			return strings.Contains(cmd.Stdout(), "33 77\r\n"), cmd.Stdout()
		})
		if during, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *during == *before {
			t.Errorf("%s: the terminal does not hand keys on as they are: %v", c.name, err)
		}
		c.end(cmd)
		if r := cmd.Wait(); r.Code != c.code {
			t.Errorf("%s: got code %d, %s, want %d", c.name, r.Code, r.Stderr, c.code)
		}
		if after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *after != *before {
			t.Errorf("%s: got %+v, %v, want the terminal as before: %+v", c.name, after, err, before)
		}
		e.b.WaitReady()
	}
}
