package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
	"staddle.internal/kit/config"
	processv1 "staddle.internal/proto/gen/staddle/process/v1"
)

// rightsOf are the capabilities of each component. Whoever is given one more shall
// have to write it down here as well.
var rightsOf = map[string][]string{
	"clusteraccess": {},
	"storage":       {"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"},
	"storage-agent": {},
	"sandboxhost":   {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_KILL", "CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_MAC_ADMIN", "CAP_NET_BIND_SERVICE"},
	"sandbox-agent": {},
	"presence":      {},
	"coordinator":   {"CAP_CHOWN"},
}

// bits are the capabilities that any of them has.
var bits = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_KILL": unix.CAP_KILL,
	"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID, "CAP_MAC_ADMIN": unix.CAP_MAC_ADMIN, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
}

// secret is in the environment of whoever starts the supervisor, and nobody else's
// business.
const secret = "SECRET_OF_THE_ONE_WHO_STARTS_IT=1"

// What a process may do is what it needs, from its birth on and also when it is
// started again: its user, no groups, its capabilities in all five sets, no way to
// more, and nothing open or set that was meant for somebody else.
func TestMachine_ProcessesHaveTheirRightsOnly(t *testing.T) {
	stray, err := os.CreateTemp(t.TempDir(), "stray")
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() {
		for _, f := range []*os.File{stray, r, w} {
			must(t, f.Close())
		}
	})
	b, supervisor := machine(t, bed.Options{Env: []string{secret}, Open: []*os.File{stray, w}})
	b.OK("run", "-d", "--name", "web", bed.ProbeImage, "--", "sleep")

	checkRights(t, b, supervisor.Pid)
	for name := range rightsOf {
		b.Kill(name)
	}
	b.Kill("containerd")
	b.WaitReady()
	checkRights(t, b, supervisor.Pid)
	bed.Eventually(t, waitLong, "nobody has anything open that is not its own", func(context.Context) (bool, string) {
		bad := strangeFiles(t, b, supervisor.Pid, stray.Name())
		return len(bad) == 0, strings.Join(bad, "; ")
	})
	speaksForItself(t, b)
}

// checkRights looks at every thread of every process: rights belong to threads.
func checkRights(t *testing.T, b *bed.Bed, supervisor int) {
	t.Helper()
	node, err := config.LoadNode(b.Paths.NodeFile())
	must(t, err)
	listed := map[string][]string{}
	for _, c := range node.Graph() {
		listed[c.Name] = c.Capabilities
	}
	root := statuses(t, supervisor)[0]
	wantStatus(t, "supervisor", supervisor, 0, root["CapPrm"], "0")
	for name, pid := range processes(t, b) {
		if name == config.ContainerdName { // it starts containers, and they have what their specs say
			wantStatus(t, name, int(pid), 0, root["CapPrm"], "0")
			continue
		}
		want, known := rightsOf[name]
		if !known || !slices.Equal(sorted(want), sorted(listed[name])) {
			t.Errorf("%s is listed with %v, want %v", name, listed[name], want)
		}
		uid, ok := node.Users.ID(name)
		if !ok || uid == 0 {
			t.Fatalf("%s has no user of its own: the test proves nothing", name)
		}
		wantStatus(t, name, int(pid), uid, mask(t, want, root["CapPrm"]), "1")
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		must(t, err)
		if strings.Contains(string(environ), "SECRET") {
			t.Errorf("%s has the environment of the supervisor: %q", name, environ)
		}
	}
}

// wantStatus checks the threads of one process. Root's rights need be in no set
// that survives a change of user.
func wantStatus(t *testing.T, name string, pid, uid int, capabilities, noNewPrivileges string) {
	t.Helper()
	id := strings.TrimSuffix(strings.Repeat(strconv.Itoa(uid)+" ", 4), " ")
	want := map[string]string{"Uid": id, "Gid": id, "Groups": "", "CapPrm": capabilities, "CapEff": capabilities, "NoNewPrivs": noNewPrivileges}
	if uid != 0 {
		want["CapInh"], want["CapBnd"], want["CapAmb"] = capabilities, capabilities, capabilities
	}
	for _, got := range statuses(t, pid) {
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s: thread %s has %s %q, want %q", name, got["Pid"], key, got[key], value)
			}
		}
	}
}

// statuses is what the kernel says of each thread of a process, by key.
func statuses(t *testing.T, pid int) []map[string]string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	must(t, err)
	var all []map[string]string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended meanwhile
		}
		status := map[string]string{}
		for line := range strings.Lines(string(raw)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Join(strings.Fields(value), " ")
		}
		all = append(all, status)
	}
	if len(all) == 0 {
		t.Fatalf("process %d has no thread", pid)
	}
	return all
}

// mask writes capabilities as the kernel does, without those that the supervisor
// does not have itself.
func mask(t *testing.T, names []string, own string) string {
	t.Helper()
	may, err := strconv.ParseUint(own, 16, 64)
	must(t, err)
	var set uint64
	for _, name := range names {
		bit, known := bits[name]
		if !known {
			t.Fatalf("%s has no number in this test", name)
		}
		set |= 1 << bit
	}
	return fmt.Sprintf("%016x", set&may)
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// files are what a process has open, by the words of the kernel.
func files(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	must(t, err)
	var all []string
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // else it was closed meanwhile
			all = append(all, to)
		}
	}
	return all
}

// strangeFiles says who has something open that is not its own. Of what the
// supervisor has open, each child has the reading end of its leash and its listening
// socket, and containerd nothing.
func strangeFiles(t *testing.T, b *bed.Bed, supervisor int, stray string) []string {
	t.Helper()
	held := files(t, supervisor)
	if !slices.Contains(held, stray) {
		t.Fatalf("the supervisor does not have %s open: the test proves nothing", stray)
	}
	listeners := unixListeners(t, supervisor)
	var bad []string
	given := map[string]string{} // by file, to whom
	for name, pid := range processes(t, b) {
		count := map[string]int{}
		for _, file := range files(t, int(pid)) {
			kind, _, _ := strings.Cut(file, ":")
			passed := slices.Contains(held, file) && (kind == "pipe" || listeners[file])
			switch {
			case passed && given[file] != "" && given[file] != name:
				bad = append(bad, fmt.Sprintf("%s has %s open, and so has %s", name, file, given[file]))
			case passed && given[file] == "":
				given[file] = name
				count[kind]++
			case strings.HasPrefix(file, "/") && !ownFile(b, name, file):
				bad = append(bad, fmt.Sprintf("%s has %s open", name, file))
			}
		}
		if want := map[bool]int{true: 0, false: 1}[name == config.ContainerdName]; count["pipe"] != want || count["socket"] != want {
			bad = append(bad, fmt.Sprintf("%s has of the supervisor's %v, want %d of each", name, count, want))
		}
	}
	for _, pid := range b.Shims() {
		for _, file := range files(t, pid) {
			if file == stray || slices.Contains(held, file) && (strings.HasPrefix(file, "pipe:") || listeners[file]) {
				bad = append(bad, fmt.Sprintf("a shim has %s open", file))
			}
		}
	}
	return bad
}

// ownFile says whether a file is one that a component has by itself.
func ownFile(b *bed.Bed, component, file string) bool {
	for _, prefix := range []string{
		os.DevNull, "/sys/fs/cgroup/", "/proc/", // limits of processor time, which the runtime follows
		b.Paths.Var(component), filepath.Join(b.Paths.Run(), component),
		filepath.Join(b.Paths.Var("supervisor"), "logs", component+".log"),
	} {
		if file == prefix || strings.HasPrefix(file, strings.TrimSuffix(prefix, "/")+"/") {
			return true
		}
	}
	return false
}

// unixListeners are the listening unix sockets of a process's network, by the words
// of the kernel. Their paths are those that they were made under.
func unixListeners(t *testing.T, pid int) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	must(t, err)
	all := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		const listens = "00010000"
		if f := strings.Fields(line); len(f) > 6 && f[3] == listens {
			all["socket:["+f[6]+"]"] = true
		}
	}
	return all
}

// speaksForItself checks that each socket leads to the process of its name.
func speaksForItself(t *testing.T, b *bed.Bed) {
	t.Helper()
	for name, pid := range processes(t, b) {
		if name == config.ContainerdName {
			continue
		}
		status, err := processv1.NewProcessServiceClient(b.Conn(name)).GetStatus(t.Context(), &processv1.GetStatusRequest{})
		must(t, err)
		if status.GetProcess() != name || status.GetPid() != pid {
			t.Errorf("the socket of %s, pid %d, leads to %s, pid %d", name, pid, status.GetProcess(), status.GetPid())
		}
	}
}
