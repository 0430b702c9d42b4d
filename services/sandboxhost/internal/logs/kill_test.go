package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"staddle.internal/kit/fdstore"
	"staddle.internal/kit/id"
)

// drainVariable makes this test binary a process that drains output, below the
// folder that it names.
const drainVariable = "STADDLE_TEST_DRAIN"

// deliveryVariable says to that process how it drains.
const deliveryVariable = "STADDLE_TEST_DELIVERY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(drainVariable); dir != "" {
		os.Exit(drainUntilKilled(dir))
	}
	os.Exit(m.Run())
}

// drainUntilKilled is the process that is killed. It takes over what there is,
// opens the pipes of the sandbox that it is told of if there are none, and says
// on its standard output when it is ready.
func drainUntilKilled(dir string) int {
	s := New(Config{Dir: filepath.Join(dir, "logs"), Run: filepath.Join(dir, "run"), MaxSize: 1 << 30, KeepAttempts: 5},
		Deps{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), FDs: fdstore.Inherited()})
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Adopt(context.Background(), func(id.Sandbox, string, uint64) bool { return false }); err != nil {
		return fail(err)
	}
	uid := id.Sandbox(os.Args[1])
	kept, err := s.Kept(uid)
	if err != nil {
		return fail(err)
	}
	if !kept {
		if _, err := s.Open(uid, "web", 1, deliveries[os.Getenv(deliveryVariable)]); err != nil {
			return fail(err)
		}
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until it is killed
		return fail(err)
	}
	return 0
}

// TestStore_LosesNothingWhenKilled kills the draining process again and again
// while a workload writes, and also while it ends.
func TestStore_LosesNothingWhenKilled(t *testing.T) {
	for name := range deliveries {
		for round := range 3 {
			t.Run(fmt.Sprintf("%s %d", name, round), func(t *testing.T) { testKill(t, name) })
		}
	}
}

var deliveries = map[string]Delivery{"default": Default, "blocking": Blocking, "non-blocking": NonBlocking}

func testKill(t *testing.T, delivery string) {
	t.Setenv(deliveryVariable, delivery)
	dir, err := os.MkdirTemp("", "sdl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}()
	keeper := fdstore.NewManager(fdstore.ManagerConfig{Path: filepath.Join(dir, "n")},
		fdstore.ManagerDeps{Owner: func(int, uint32) (string, bool) { return "drain", true }})
	ctx, cancel := context.WithCancel(t.Context())
	up, down := make(chan struct{}), make(chan error, 1)
	go func() { down <- keeper.Run(ctx, func() { close(up) }) }()
	<-up
	defer func() {
		cancel()
		if err := errors.Join(<-down, keeper.Close()); err != nil {
			t.Error(err)
		}
	}()

	uid := id.NewSandbox()
	p := startDrain(t, dir, keeper, uid)
	view := New(Config{Dir: filepath.Join(dir, "logs"), Run: filepath.Join(dir, "run"), MaxSize: 1 << 30, KeepAttempts: 5},
		Deps{Log: slog.New(slog.DiscardHandler), FDs: forgetful{}})
	out := writeEnd(t, view.fifo(key{uid, "web", 1, false}))
	errs := writeEnd(t, view.fifo(key{uid, "web", 1, true}))
	want := numbered(0, 200_000+rand.IntN(100_000))
	written := make(chan struct{})
	go func() {
		defer close(written)
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(40_000))
			write(t, out, rest[:n])
			rest = rest[n:]
		}
		shut(t, out, errs)
	}()
	for range 8 {
		p.kill(t, time.Duration(rand.IntN(20_000))*time.Microsecond)
		p = startDrain(t, dir, keeper, uid)
	}
	select {
	case <-written:
	case <-time.After(waitLimit):
		t.Fatal("the workload waits for ever")
	}
	got := p.read(t, view, uid, len(want))
	p.kill(t, 0)
	if !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want %d, the same up to %d", len(got), len(want), same(got, want))
	}
}

func same(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// drain is a running draining process.
type drain struct {
	cmd *exec.Cmd
	in  io.Closer
}

func startDrain(t *testing.T, dir string, keeper *fdstore.Manager, uid id.Sandbox) *drain {
	t.Helper()
	files, err := keeper.Open("drain")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	cmd := exec.Command(os.Args[0], string(uid))
	cmd.Env = append(append(os.Environ(), drainVariable+"="+dir), fdstore.Env(filepath.Join(dir, "n"), names)...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shut(t, files...)
	if line, err := io.ReadAll(io.LimitReader(said, int64(len("ready")))); err != nil || string(line) != "ready" {
		t.Fatalf("the draining process said %q, %v", line, err)
	}
	return &drain{cmd, in}
}

// kill kills it after a moment.
func (p *drain) kill(t *testing.T, after time.Duration) {
	t.Helper()
	timer := time.NewTimer(after)
	<-timer.C
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("the draining process ended with %v", err)
	}
}

// read waits until the stream is closed or as long as it should be, and reads it.
func (p *drain) read(t *testing.T, view *Store, uid id.Sandbox, size int) []byte {
	t.Helper()
	marker := filepath.Join(key{uid, "web", 1, false}.below(view.Dir(uid)), closedMarker)
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
		select {
		case <-tick.C:
			continue
		case <-limit.C:
			t.Errorf("the stream is not closed after %s", waitLimit)
		}
		break
	}
	got := make([]byte, 0, size)
	at := Position{UID: uid, Container: "web", Attempt: 1, Stdout: true}
	err := view.Read(t.Context(), at, Mode{Tail: -1}, func(c Chunk) error {
		if c.Offset != int64(len(got)) {
			t.Errorf("got offset %d, want %d", c.Offset, len(got))
		}
		got = append(got, c.Data...)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return got
}
