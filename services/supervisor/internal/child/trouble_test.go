package child

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
)

// A number may be used again while a component waits for its next start.
func TestRunner_OwnerIsOfTheComponentsUser(t *testing.T) {
	r := New(Config{}, Deps{Log: slog.New(slog.DiscardHandler)})
	r.children["storage"] = &child{spec: Spec{Name: "storage", UID: 64201, GID: 64201}}
	r.children["own"] = &child{spec: Spec{Name: "own"}}
	r.owners[100], r.owners[101] = "storage", "own"
	tests := []struct {
		pid  int
		uid  uint32
		want string
	}{
		{100, 64201, "storage"},
		{100, 1000, ""},
		{101, uint32(os.Getuid()), "own"},
		{101, 64201, ""},
		{102, 64201, ""},
	}
	for _, tt := range tests {
		if got, ok := r.owner(tt.pid, tt.uid); got != tt.want || ok != (tt.want != "") {
			t.Errorf("process %d of user %d: got %q, %t, want %q", tt.pid, tt.uid, got, ok, tt.want)
		}
	}
}

// What cannot be ended holds up its own component, not the whole node.
func TestRunner_GoesOnPastALeftoverThatCannotBeEnded(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	r := New(Config{RunDir: dir}, Deps{Log: slog.New(slog.NewTextHandler(&log, nil))})
	var err error
	if r.boot, err = boottime.ID(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(notePath(dir, "storage"), 0o700); err != nil { // nobody can tell what it says
		t.Fatal(err)
	}
	cmd := sleeper(t, dir, "presence", "echo up; exec sleep 60")
	if err := r.endLeftovers(t.Context()); err != nil {
		t.Errorf("got %v, want the others to start", err)
	}
	if !gone(t, cmd.Process.Pid) {
		t.Error("the other left-over lives")
	}
	if !bytes.Contains(log.Bytes(), []byte("component=storage")) {
		t.Errorf("log does not name it: %s", log.String())
	}
}

// A component that writes without end fills no disk with what is set aside.
func TestTrimOutput_BoundsWhatIsSetAside(t *testing.T) {
	dir := t.TempDir()
	f, err := openOutput(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	const limit = 10_000
	if _, err := newOutputs(dir).trim("a", limit); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(outputPath(dir, "a") + ".1")
	if err != nil {
		t.Fatal(err)
	}
	// Where the front cannot be collapsed, what came meanwhile is set aside as well.
	if got := info.Size(); got < limit || got > (maxOlder+1)*limit {
		t.Errorf("set aside are %d bytes, want about %d", got, maxOlder*limit)
	}
}

// A full disk is no reason to let the output of a component grow for ever.
func TestTrimOutput_BoundsOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f, err := openOutput(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 700<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := newOutputs(dir).trim("a", 10_000); err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() > 10_000 {
		t.Errorf("got %v, %v, want the output cut", info.Size(), err)
	}
}
