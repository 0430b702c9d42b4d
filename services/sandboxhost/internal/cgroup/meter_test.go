package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

func value(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}

func values(r Reading) [8]string {
	return [8]string{value(r.CPU), value(r.Memory), value(r.WorkingSet), value(r.MemoryLimit), value(r.PIDs), value(r.IORead), value(r.IOWritten), value(r.OOMKills)}
}

// What a kernel with the unified hierarchy and one with version 1 say is read the same;
// what is missing is absent, never 0.
func TestMeter_ReadsBothVersions(t *testing.T) {
	for name, c := range map[string]struct {
		unified     bool
		controllers []string
		files       map[string]string
		want        [8]string
	}{
		"version 2": {true, []string{"cpu", "io", "memory", "pids"}, map[string]string{
			"cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n", "memory.current": "1000\n", "memory.max": "2000\n",
			"memory.stat": "anon 100\nfile 900\ninactive_file 600\nactive_file 250\n", "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n",
			"pids.current": "7\n", "io.stat": "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=5 wbytes=6 rios=1 wios=1 dbytes=0 dios=0\n",
		}, [8]string{"1500000", "1000", "150", "2000", "7", "15", "26", "1"}},
		"version 2 without limit, and nothing read": {true, []string{"cpu", "io", "memory", "pids"}, map[string]string{
			"cpu.stat": "usage_usec 0\n", "memory.current": "0\n", "memory.max": "max\n", "memory.stat": "inactive_file 0\nactive_file 0\n", "memory.events": "oom_kill 0\n",
			"pids.current": "0\n", "io.stat": "",
		}, [8]string{"0", "0", "0", "-", "0", "0", "0", "0"}},
		"version 2, one without controllers": {true, nil, map[string]string{"cpu.stat": "usage_usec 3\n"}, [8]string{"3000", "-", "-", "-", "-", "-", "-", "-"}},
		"version 1": {false, []string{"cpuacct", "memory", "pids", "blkio"}, map[string]string{
			"cpuacct.usage": "1500\n", "memory.usage_in_bytes": "1000\n", "memory.limit_in_bytes": "9223372036854771712\n",
			"memory.stat":        "cache 900\nactive_file 1\ninactive_file 1\ntotal_inactive_file 600\ntotal_active_file 250\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "pids.current": "7\n",
			"blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\nTotal 30\n",
		}, [8]string{"1500", "1000", "150", "-", "7", "10", "20", "1"}},
		"no numbers": {true, []string{"memory", "pids"}, map[string]string{"memory.current": "x", "memory.stat": "inactive_file 1\n", "pids.current": "-3"}, [8]string{"-", "-", "-", "-", "-", "-", "-", "-"}},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			plant(t, dir, map[string]string{"g/" + file: text})
		}
		m, err := (&Tree{hierarchies: []hierarchy{{dir: dir, unified: c.unified, controllers: c.controllers}}}).Meter("/g")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r, err := m.Read()
		if err != nil || values(r) != c.want || r.At == 0 {
			t.Errorf("%s: got %v, %v, want %v", name, values(r), err, c.want)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A real group is read again and again with the same files, its counters grow, and when
// it is removed, which open files do not hinder, that is told.
func TestMeter_Real(t *testing.T) {
	tree, group := realTree(t)
	m, err := tree.Meter(group)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close() //nolint:errcheck // read only
	before, err := m.Read()
	if err != nil || before.CPU == nil || before.Memory == nil || before.WorkingSet == nil || before.PIDs == nil || *before.PIDs != 0 || before.OOMKills == nil {
		t.Fatalf("got %v, %v", values(before), err)
	}
	// A shell that goes into the group, works there, and says so.
	cmd := exec.Command("sh", "-c", `for d in "$@"; do echo $$ > "$d/cgroup.procs"; done; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done`, "sh")
	for _, h := range tree.hierarchies {
		cmd.Args = append(cmd.Args, h.path(group))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := m.Read()
	if err != nil || after.CPU == nil || *after.CPU <= *before.CPU || after.At <= before.At {
		t.Errorf("after some work: got %v at %v, %v; before %v at %v", values(after), after.At, err, values(before), before.At)
	}
	if err := tree.Remove(group); err != nil {
		t.Fatal(err)
	}
	if r, err := m.Read(); !errors.Is(err, ErrGone) {
		t.Errorf("of a group that is gone: got %v, %v", values(r), err)
	}
	if _, err := tree.Meter(group); !errors.Is(err, ErrGone) {
		t.Errorf("opened anew: got %v", err)
	}
}

func BenchmarkMeter(b *testing.B) {
	tree, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	group := filepath.Join("/", "sdcgbench"+strconv.Itoa(os.Getpid()))
	if err := tree.Ensure(group); err != nil {
		b.Fatal(err)
	}
	defer tree.Clear(group) //nolint:errcheck // a benchmark
	m, err := tree.Meter(group)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close() //nolint:errcheck // read only
	for b.Loop() {
		if _, err := m.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
