package pressure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/services/sandboxhost/internal/filesystem"
)

// kernel writes the files of a machine. What is cached is none of its shortage: only
// what is available counts.
func kernel(t *testing.T, available, tasks int64, stall string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, available, tasks, stall)
	return dir
}

func write(t *testing.T, dir string, available, tasks int64, stall string) {
	t.Helper()
	files := map[string]string{
		"meminfo":                fmt.Sprintf("MemTotal:       8388608 kB\nMemFree:           1000 kB\nMemAvailable:   %d kB\nBuffers:             0 kB\nCached:        6000000 kB\n", available>>10),
		"loadavg":                fmt.Sprintf("0.10 0.20 0.30 1/%d 4711\n", tasks),
		"sys/kernel/pid_max":     "32768\n",
		"sys/kernel/threads-max": "1000\n",
	}
	if stall != "" {
		files["pressure/memory"] = "some avg10=99.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=" + stall + " avg60=0.00 avg300=0.00 total=0\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProcFiles(t *testing.T) {
	p := procFiles(kernel(t, 3<<30, 250, "12.34"))
	memory, err := p.memory()
	if err != nil || memory != (MemoryUse{Available: 3 << 30, Total: 8 << 30, Stall: 12.34}) {
		t.Errorf("memory: got %+v, %v", memory, err)
	}
	tasks, err := p.tasks()
	if err != nil || tasks != (PIDUse{Of: "this machine", Now: 250, Most: 1000}) {
		t.Errorf("tasks: got %+v, %v", tasks, err)
	}
	memory, err = procFiles(kernel(t, 3<<30, 250, "")).memory()
	if err != nil || memory.Stall >= 0 {
		t.Errorf("a kernel that does not measure stalls: got %+v, %v", memory, err)
	}
	if _, err := procFiles(t.TempDir()).memory(); err == nil {
		t.Error("no files: got no error")
	}
	real, err := procFiles("/proc").memory()
	if err != nil || real.Available <= 0 || real.Available > real.Total {
		t.Errorf("this machine: got %+v, %v", real, err)
	}
	if tasks, err := procFiles("/proc").tasks(); err != nil || tasks.Now <= 0 || tasks.Most < tasks.Now {
		t.Errorf("this machine: got %+v, %v", tasks, err)
	}
}

// await follows the monitor until what it tells is as wanted.
func await(t *testing.T, m *Monitor, what string, good func(map[Resource]Track) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var last map[Resource]Track
	found := errors.New("found")
	err := m.Follow(ctx, func(tracks map[Resource]Track) error {
		last = tracks
		if good(tracks) {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Fatalf("%s: %v, last seen %+v", what, err, last)
	}
}

func TestMonitor_RefusesWhileShort(t *testing.T) {
	dir := kernel(t, 3<<30, 250, "0.00")
	m := New(Config{
		Limits: Limits{MemoryMinFree: 1 << 30, PIDMinFreePercent: 5, DiskMinFreePercent: 0}, Period: time.Millisecond, Proc: dir, Paths: []string{dir},
	}, Deps{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if got := m.Tracks()[Memory]; got.State != Unknown || m.Refusal() != nil {
		t.Errorf("before the first measurement: got %+v, %v", got, m.Refusal())
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- m.Run(ctx, func() { close(ready) }) }()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended: %v", err)
		}
	}()
	<-ready
	for _, r := range Resources {
		if got := m.Tracks()[r]; got.State != Well {
			t.Errorf("%s once ready: got %+v", r, got)
		}
	}
	write(t, dir, 512<<20, 250, "0.00")
	await(t, m, "short of memory", func(now map[Resource]Track) bool { return now[Memory].State == Short })
	err := m.Refusal()
	if !errors.Is(err, fault.Exhausted) || fault.Reason(err) != "MEMORY_PRESSURE" || !strings.Contains(err.Error(), "512.0 MiB of 8.0 GiB memory available, 1.0 GiB have to be") {
		t.Errorf("refusal: got %v", err)
	}
	write(t, dir, 3<<30, 990, "0.00")
	await(t, m, "short of tasks alone", func(now map[Resource]Track) bool { return now[Memory].State == Well && now[PIDs].State == Short })
	if err := m.Refusal(); fault.Reason(err) != "PID_PRESSURE" {
		t.Errorf("refusal: got %v", err)
	}
	write(t, dir, 3<<30, 250, "0.00")
	await(t, m, "over", func(now map[Resource]Track) bool { return now[PIDs].State == Well })
	if err := m.Refusal(); err != nil {
		t.Errorf("refusal: got %v", err)
	}
}

// broom is a cleaner that calls back.
type broom struct {
	clean func()
	told  []filesystem.Space
}

func (b *broom) Clean(context.Context) { b.clean() }

func (b *broom) Measured(disks []filesystem.Space) { b.told = disks }

func TestMonitor_CleansBeforeADiskIsShort(t *testing.T) {
	relieved, limits := 0, Limits{DiskMinFree: 1 << 60}
	m := New(Config{Limits: limits, Proc: kernel(t, 3<<30, 250, ""), Paths: []string{t.TempDir()}}, Deps{Log: slog.New(slog.DiscardHandler)})
	b := &broom{clean: func() { relieved, m.cfg.Limits.DiskMinFree = relieved+1, 1 }}
	m.Relieve(b)
	m.cfg.Limits = Limits{}
	m.look(t.Context(), false) // who is to clean may not run yet
	if len(b.told) != 1 || b.told[0].Size == 0 {
		t.Errorf("who cleans was told %+v", b.told)
	}
	m.cfg.Limits = limits
	m.look(t.Context(), false)
	if got := m.Tracks()[Disk]; relieved != 1 || got.State != Well {
		t.Errorf("after a cleaning that helped (%d): got %+v", relieved, got)
	}
	m.cfg.Limits = limits
	b.clean = func() { relieved++ }
	m.look(t.Context(), false)
	if got := m.Tracks()[Disk]; relieved != 2 || got.State != Short || fault.Reason(m.Refusal()) != "DISK_PRESSURE" {
		t.Errorf("after one that did not (%d): got %+v", relieved, got)
	}
}

// A limit around the node counts where it is smaller than the machine.
func TestMonitor_LimitOfTheNodeItself(t *testing.T) {
	var available, limit int64
	m := New(Config{Limits: Limits{MemoryMinFree: 1 << 30}, Proc: kernel(t, 3<<30, 250, "")}, Deps{
		Log: slog.New(slog.DiscardHandler), Memory: func() (int64, int64, error) { return available, limit, nil },
	})
	for _, c := range []struct {
		available, limit int64
		want             State
	}{{0, 0, Well}, {2 << 30, 4 << 30, Well}, {0, 16 << 30, Well}, {512 << 20, 4 << 30, Short}} {
		available, limit = c.available, c.limit
		m.look(t.Context(), false)
		if got := m.Tracks()[Memory]; got.State != c.want {
			t.Errorf("%d of %d available: got %+v", c.available, c.limit, got)
		}
	}
	if got := m.Tracks()[Memory].Reason; !strings.Contains(got, "512.0 MiB of 4.0 GiB memory available") {
		t.Errorf("got %q", got)
	}
}

// The kernel tells of a stall between two readings of the clock.
func TestMonitor_KernelTellsOfStalls(t *testing.T) {
	m := New(Config{Limits: Limits{MemoryStallPercent: 40}, Proc: kernel(t, 3<<30, 250, "1.00")}, Deps{Log: slog.New(slog.DiscardHandler)})
	m.look(t.Context(), true)
	if got := m.Tracks()[Memory]; got.State != Short || !strings.Contains(got.Reason, "for more than 40 % of ten seconds") {
		t.Errorf("got %+v", got)
	}
}

// A real trigger of this machine is taken by the kernel, silent while memory is there,
// and ends when it is asked to.
func TestArm_Real(t *testing.T) {
	if _, err := os.Stat("/proc/pressure/memory"); err != nil {
		if _, err := arm("/proc/pressure/memory", 40); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a kernel that does not count: got %v", err)
		}
		return
	}
	trigger, err := arm("/proc/pressure/memory", 99)
	if err != nil {
		t.Fatal(err)
	}
	trigger.close()
	trigger.close() // is safe to repeat
	select {
	case <-trigger.fired:
		t.Error("it fired though nothing waits for memory all the time")
	default:
	}
}

func TestMonitor_AFailedQuestionIsNoAnswer(t *testing.T) {
	m := New(Config{Limits: Limits{DiskMinFree: 1}, Proc: t.TempDir(), Paths: []string{t.TempDir()}}, Deps{
		Log:   slog.New(slog.DiscardHandler),
		Roots: func(context.Context) ([]string, error) { return nil, fault.New(fault.Unavailable, "nobody answers") },
	})
	m.look(t.Context(), false)
	for _, r := range Resources {
		if got := m.Tracks()[r]; got.State != Unknown || got.Reason == "" {
			t.Errorf("%s: got %+v", r, got)
		}
	}
	m.cfg.Limits.DiskMinFree = 1 << 60
	m.look(t.Context(), false)
	if got := m.Tracks()[Disk]; got.State != Short {
		t.Errorf("a disk that is known to be short: got %+v", got)
	}
}
