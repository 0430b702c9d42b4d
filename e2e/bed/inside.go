package bed

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Listen returns a listener on a free port of the bed's own loopback. Who serves
// on it closes it.
func (b *Bed) Listen() net.Listener {
	b.t.Helper()
	var l net.Listener
	b.must(InNetwork(filepath.Join("/run/netns", b.NS), func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	return l
}

// Connect connects by TCP from the machine's own network, beside its bridge, and hangs up.
func (b *Bed) Connect(address string) error {
	b.t.Helper()
	return InNetwork(filepath.Join("/run/netns", b.NS), func() error {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Dial connects by TCP as a program of this machine does. The caller closes the connection.
func (b *Bed) Dial(address string) (conn *net.TCPConn, err error) {
	b.t.Helper()
	err = InNetwork(filepath.Join("/run/netns", b.NS), func() error {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// ConnectsFrom connects from the network namespace at a path to an address, and hangs up.
func (b *Bed) ConnectsFrom(namespace, network, address string) error {
	return InNetwork(namespace, func() error {
		conn, err := net.DialTimeout(network, address, 5*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// AskFrom sends a line from the network namespace at a path to an address, and returns the line
// that it is answered.
func (b *Bed) AskFrom(namespace, network, address string) (line string, err error) {
	err = InNetwork(namespace, func() error {
		conn, err := net.DialTimeout(network, address, 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(conn, "?"); err != nil {
			return err
		}
		line, err = bufio.NewReader(conn).ReadString('\n')
		return err
	})
	return strings.TrimSpace(line), err
}

// InNetwork runs f on a thread in the network namespace at a path. The thread goes
// back to its own; if it cannot, it is never used for anything else.
func InNetwork(path string, f func() error) error {
	there, err := os.Open(path)
	if err != nil {
		return err
	}
	defer there.Close()
	result := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter %s: %w", path, err)
			return
		}
		err = f()
		back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		result <- errors.Join(err, back)
	}()
	return <-result
}

// PutStateOn puts all durable data on a filesystem of its own that has so much
// room, such as "64m". Call it before Start.
func (b *Bed) PutStateOn(size string) {
	b.t.Helper()
	b.must(os.MkdirAll(b.Paths.Var(""), 0o755))
	b.command("mount", "-t", "tmpfs", "-o", "mode=755,size="+size, "staddle-e2e", b.Paths.Var(""))
	b.before = b.inventory()
}

// GrowState gives the filesystem of PutStateOn another size.
func (b *Bed) GrowState(size string) {
	b.t.Helper()
	b.command("mount", "-o", "remount,size="+size, b.Paths.Var(""))
}

// StartCLI starts the command line and returns at once. The caller ends it and
// waits for it.
func (b *Bed) StartCLI(args ...string) *exec.Cmd {
	b.t.Helper()
	return b.StartCLITo(nil, args...)
}

// StartCLITo is StartCLI with its standard output going to a writer.
func (b *Bed) StartCLITo(stdout io.Writer, args ...string) *exec.Cmd {
	b.t.Helper()
	cmd := b.inside(filepath.Join(b.bin, "staddle"), append([]string{"--root", b.Paths.Root}, args...)...)
	cmd.Stdout = stdout
	b.must(cmd.Start())
	return cmd
}

// Text is output that can be read while it is written.
type Text struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write takes what a program wrote.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String is all that was written so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Workloads returns the process ids of everything that runs in the cgroups of the
// bed's sandboxes.
func (b *Bed) Workloads() []int {
	b.t.Helper()
	entries, err := os.ReadDir("/proc")
	b.must(err)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if err != nil {
			continue // gone meanwhile
		}
		inside := strings.Contains(string(groups), "/"+b.Parent+"/") && !strings.Contains(string(groups), "/"+b.Parent+"/shims")
		if inside && Alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
