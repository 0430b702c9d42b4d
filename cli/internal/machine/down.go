package machine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
	"staddle.internal/cli/internal/target"
)

// Down stops the installation and everything that it runs: the processes, then
// the sandboxes and what they have in the kernel. Data stays, unless it is purged.
// It is safe when nothing runs.
func (m *Machine) Down(ctx context.Context, purge bool) error {
	end, err := m.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := m.takeDown(ctx); err != nil {
		return err
	}
	if purge {
		return m.purge()
	}
	if _, err := os.Stat(m.Paths.Var("")); err == nil {
		m.say("data stays in %s", m.Paths.Var(""))
	}
	return nil
}

func (m *Machine) takeDown(ctx context.Context) error {
	names := m.runningSandboxes(ctx)
	stopped, err := m.Stop(ctx)
	if err != nil {
		return err
	}
	if stopped {
		m.say("stopped the supervisor and its processes")
	} else {
		m.say("no supervisor runs")
	}
	for _, path := range []string{m.binary("staddle-node"), m.Paths.NodeFile()} {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			m.say("nothing to take down: there is no %s", path)
			m.sayOther()
			return nil
		} else if err != nil {
			return fmt.Errorf("tear down: %w", err)
		}
	}
	if err := m.teardown(); err != nil {
		return err
	}
	if len(names) > 0 {
		m.say("ended sandboxes: %s", strings.Join(names, ", "))
	}
	m.say("nothing of it runs")
	return nil
}

// sayOther names the installation that the person's other commands are about, to
// somebody who named none.
func (m *Machine) sayOther() {
	if m.Home == nil || m.Paths.Root != "" {
		return
	}
	if c, err := m.Home.Read(); err == nil && c.Root != "" {
		m.say("your other commands are about another installation; for that one: staddle --root %s down", c.Root)
	}
}

// teardown ends the sandboxes and removes what they have in the kernel. What the
// program says on the way is of interest only if it fails.
func (m *Machine) teardown() error {
	cmd := m.command("staddle-node", "teardown")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return exit.Try(fault.New(fault.Internal, "tear down sandboxes: %w\n%s", err, bytes.TrimSpace(out)),
			"staddle down again; what is gone stays gone")
	}
	return nil
}

// runningSandboxes names what is about to be ended. It is for the message only:
// a host that does not answer leaves it empty, and is torn down all the same.
func (m *Machine) runningSandboxes(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	settings, err := target.Load(target.Flags{Root: m.Paths.Root, System: true})
	if err != nil {
		return nil
	}
	host, err := settings.Node(ctx)
	if err != nil {
		return nil
	}
	list, err := host.List(ctx)
	if err = errors.Join(err, host.Close()); err != nil {
		return nil
	}
	var names []string
	for i := range list {
		if list[i].Running() {
			names = append(names, list[i].Name)
		}
	}
	return names
}

// Leftovers lists what is purged.
func (m *Machine) Leftovers() []string {
	all := []string{m.Bin(), m.Paths.Etc(), m.Paths.Var(""), m.Paths.Run(), m.Paths.SocketSpares()}
	if m.Paths.Root == "" && linked(systemCommand, m.binary("staddle")) {
		all = append(all, systemCommand)
	}
	return all
}

// purge removes the installation's files. Anything still mounted below them is a
// reason to remove nothing: what is behind a mount is not ours to delete.
func (m *Machine) purge() error {
	mounts, err := mountsBelow(m.Leftovers())
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if len(mounts) > 0 {
		return exit.Try(fault.New(fault.Conflict, "purge: still mounted: %s", strings.Join(mounts, ", ")), "staddle down")
	}
	for _, path := range m.Leftovers() {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
		m.say("removed %s", path)
	}
	if m.Home == nil {
		return nil
	}
	return m.Home.Forget(m.Paths.Root)
}

// mountsBelow returns the mount points at or below any of the folders.
func mountsBelow(folders []string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	var found []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		for _, folder := range folders {
			if rel, err := filepath.Rel(folder, point); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				found = append(found, point)
				break
			}
		}
	}
	return found, lines.Err()
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
