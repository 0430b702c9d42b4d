//go:build systemd

package systemd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a root file system in a folder, and the systemd that runs on it.
type machine struct {
	name string // of the cgroup that is its root, and the host name
	root string // folder
	boot *boot  // nil while it is off
	env  string // number of boots so far, for their ids
}

// boot is one life of a machine.
type boot struct {
	cmd  *exec.Cmd
	init int // process 1 of the machine, as this side sees it
	done chan struct{}
	out  *output
}

// output collects what a boot says before systemd has a journal.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// newMachine unpacks a root and installs what is tested on it, as a person would.
func newMachine() (*machine, error) {
	archive, err := command("./root.sh")
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("/var/tmp", "stsd-")
	if err != nil {
		return nil, err
	}
	m := &machine{name: filepath.Base(root), root: root}
	if err := os.Chmod(root, 0o755); err != nil {
		return m, err
	}
	if _, err := command("tar", "-C", root, "--numeric-owner", "-xf", strings.TrimSpace(archive)); err != nil {
		return m, err
	}
	if err := os.WriteFile(m.path("/etc/hostname"), []byte("node1\n"), 0o644); err != nil {
		return m, err
	}
	return m, m.install()
}

// install runs make install for the machine.
func (m *machine) install() error {
	// The systemd on the machine is older than what the drop-ins for newer ones need.
	_, err := command("env", "DESTDIR="+m.root, "SYSTEMD_VERSION=252", "../../tools/install.sh", "install")
	return err
}

func (m *machine) path(inside string) string { return filepath.Join(m.root, inside) }

// on boots the machine, and returns when that is finished.
func (m *machine) on() error {
	m.env += "1"
	id := fmt.Sprintf("%08d-0000-4000-8000-%012d", os.Getpid(), len(m.env))
	b := &boot{done: make(chan struct{}), out: &output{}}
	b.cmd = exec.Command("./boot.sh", m.root, m.name, id)
	b.cmd.Stdout, b.cmd.Stderr, b.cmd.WaitDelay = b.out, b.out, time.Second
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the machine, for which off and TestMain wait
		_ = b.cmd.Wait()
		close(b.done)
	}()
	m.boot = b
	return until(time.Minute, "the machine to be up", func() (bool, string) {
		b.init = child(b.cmd.Process.Pid) // before systemd answers it may still be a command of the script
		r := m.run("systemctl", "show", "--value", "--property=SystemState")
		state := strings.TrimSpace(r.text)
		return state == "running" || state == "degraded", state + " " + b.out.String()
	})
}

// child is the only child of a process, or 0.
func child(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var found int
	if err == nil {
		_, _ = fmt.Sscan(string(text), &found) // none: 0
	}
	return found
}

// ended waits until the machine is off by itself.
func (m *machine) ended(limit time.Duration) error {
	select {
	case <-m.boot.done:
		m.boot = nil
		return nil
	case <-time.After(limit):
		return errors.New("the machine is still on after " + limit.String())
	}
}

// cut cuts the power.
func (m *machine) cut() error {
	if m.boot == nil {
		return nil
	}
	_ = m.boot.cmd.Process.Kill() // takes process 1 with it, and that all others
	return m.ended(20 * time.Second)
}

// remove cuts the power and removes all that the machine left on this side.
func (m *machine) remove() error {
	errs := []error{m.cut()}
	for _, dir := range hierarchies() {
		errs = append(errs, until(10*time.Second, "the cgroups of the machine to be removed", func() (bool, string) {
			err := removeGroups(filepath.Join(dir, m.name))
			return err == nil, fmt.Sprint(err)
		}))
	}
	return errors.Join(append(errs, os.RemoveAll(m.root))...)
}

// removeGroups removes a cgroup and those below it.
func removeGroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		if rmErr := unix.Rmdir(d); rmErr != nil && !errors.Is(rmErr, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("remove %s: %w", d, rmErr))
		}
	}
	return err
}

// hierarchies are where cgroups are mounted on this side.
func hierarchies() []string {
	text, err := os.ReadFile("/proc/mounts")
	if err != nil {
		panic(err) // there is no Linux without it
	}
	var dirs []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[2] == "cgroup" || f[2] == "cgroup2" {
			dirs = append(dirs, f[1])
		}
	}
	return dirs
}

// result is what a command on the machine gave.
type result struct {
	text string // standard output and error
	code int
}

// run runs a command on the machine, for two minutes at most.
func (m *machine) run(args ...string) result {
	if m.boot == nil || m.boot.init == 0 {
		return result{"the machine is off", -1}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--target=%d", m.boot.init), "--all", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", "SYSTEMD_EMOJI=0"}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return result{err.Error(), -1}
	}
	return result{string(out), cmd.ProcessState.ExitCode()}
}

// command runs a command on this side that has to succeed.
func command(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// until waits for a condition, and says in vain what was seen last.
func until(limit time.Duration, what string, ask func() (bool, string)) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := ask()
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited in vain, for %s, for %s; last seen: %s", limit, what, seen)
		}
		<-tick.C
	}
}
