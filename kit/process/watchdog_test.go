package process

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAskedFor(t *testing.T) {
	tests := []struct {
		name, usec, pid string
		want            time.Duration
		wrong           bool
	}{
		{"nobody asks", "", "", 0, false},
		{"asked", "3000000", "", 3 * time.Second, false},
		{"of us", "3000000", "7", 3 * time.Second, false},
		{"of another", "3000000", "8", 0, false},
		{"no number", "soon", "", 0, true},
		{"none", "0", "", 0, true},
		{"too long", "9223372036854775807", "", 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{envWatchdog: tt.usec, envWatchdogPID: tt.pid}
			got, err := askedFor(7, func(key string) string { return env[key] })
			if got != tt.want || (err != nil) != tt.wrong {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestWatchdog_NamesTheLoopThatIsStuck(t *testing.T) {
	w := Watchdog{stuckAfter: StuckAfter}
	idle, stuck, over := w.Loop("idle"), w.Loop("stuck"), w.Loop("over")
	w.Loop("not begun")
	stuck.Alive()
	over.Alive()
	over.Done()
	periods := 0
	for ; periods < 100; periods++ {
		idle.Alive()
		if got := w.progress.after(10*time.Second, w.stuckAfter); got != "" {
			if got != "stuck" {
				t.Errorf("got loop %s, want stuck", got)
			}
			break
		}
	}
	// The first period sees the one sign of life, three more see none.
	if periods != 3 {
		t.Errorf("noticed after %d periods of 10 s without a sign, want 3", periods)
	}
	stuck.Alive()
	if got := w.progress.after(10*time.Second, w.stuckAfter); got != "" {
		t.Errorf("got loop %s, want none: it goes on", got)
	}
}

// signsOfLife starts a process that systemd would ask for signs of life every 300
// ms, and returns those that come.
func signsOfLife(t *testing.T, build string) (*proc, <-chan string) {
	t.Helper()
	dir := root(t, "version: 1\n")
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	signs, done := make(chan string, 1000), make(chan struct{})
	go func() { // ends when the socket is closed; waited for below
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			if strings.Contains(string(buf[:n]), "WATCHDOG=1") {
				signs <- string(buf[:n])
			}
		}
	}()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	p := spec{name: "presence", build: build, args: []string{"--root", dir}, env: []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=300000"}}.start(t)
	return p, signs
}

func TestWatchdog_GivesSignsOfLife(t *testing.T) {
	p, signs := signsOfLife(t, "alone")
	for i := range 5 {
		select {
		case <-signs:
		case <-time.After(20 * time.Second):
			t.Fatalf("got %d signs of life, want five; it wrote:\n%s", i, p.out)
		}
	}
}

func TestWatchdog_AStuckLoopEndsTheProcessWithItsStacks(t *testing.T) {
	p := spec{name: "clusteraccess", build: "stuck", args: []string{"--root", root(t, "version: 1\n")}}.start(t)
	if code := p.exit(t); code != 1 {
		t.Errorf("got exit code %d, want 1", code)
	}
	for _, want := range []string{"loop main made no progress", "goroutine 1 [", "stuckLoop"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("output does not say %q:\n%s", want, p.out)
		}
	}
}

// stuckLoop beats once and never again, in a process whose patience is short.
func stuckLoop(p *Process) func(context.Context, func()) error {
	p.Watchdog.asked, p.Watchdog.stuckAfter = 300*time.Millisecond, 500*time.Millisecond
	beat := p.Watchdog.Loop("main")
	return func(_ context.Context, ready func()) error {
		ready()
		beat.Alive()
		select {}
	}
}
