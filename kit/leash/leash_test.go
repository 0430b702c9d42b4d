package leash_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/leash"
)

// envChild makes the test binary play a child; its value says which.
const envChild = "LEASH_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(envChild) {
	case "":
		os.Exit(m.Run())
	case "orderly":
		ctx := leash.Attach(context.Background())
		report()
		<-ctx.Done()
		fmt.Fprintln(os.Stdout, "cause:", context.Cause(ctx))
		os.Exit(7)
	case "stuck":
		leash.Attach(context.Background())
		report()
		select {}
	}
}

// report says that the child holds its leash, and whether a grandchild would.
func report() {
	flags, err := unix.FcntlInt(3, unix.F_GETFD, 0)
	_, set := os.LookupEnv(leash.EnvFD)
	fmt.Fprintf(os.Stdout, "holding: variable %t, passed on %t, %v\n", set, flags&unix.FD_CLOEXEC == 0, err)
}

// child starts one on a leash; it is ended with the test at the latest.
func child(t *testing.T, role string) (parentEnd *os.File, cmd *exec.Cmd, lines *bufio.Reader) {
	t.Helper()
	parentEnd, childEnd, err := leash.New()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+role, leash.Env(3))
	cmd.ExtraFiles = []*os.File{childEnd}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), childEnd.Close()); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { guard.Stop(); _ = parentEnd.Close(); _ = cmd.Process.Kill() })
	lines = bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if want := "holding: variable false, passed on false, <nil>\n"; err != nil || line != want {
		t.Fatalf("child said %q, %v, want %q", line, err, want)
	}
	return parentEnd, cmd, lines
}

func TestAttach_EndsTheContextWithTheParent(t *testing.T) {
	parentEnd, cmd, lines := child(t, "orderly")
	if err := parentEnd.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), "cause: "+leash.ErrParentGone.Error()) {
		t.Errorf("child said %q, %v", rest, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("child ended with %v, want 7", err)
	}
}

func TestAttach_EndsAProcessThatDoesNot(t *testing.T) {
	parentEnd, cmd, _ := child(t, "stuck")
	began := time.Now()
	if err := parentEnd.Close(); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("child ended with %v, want 1", err)
	}
	if took := time.Since(began); took < leash.HardExit {
		t.Errorf("child was ended after %s, want %s for an orderly end", took, leash.HardExit)
	}
}

func TestAttach_HoldsWhileTheParentLives(t *testing.T) {
	parentEnd, cmd, lines := child(t, "orderly")
	// What is written is not the end.
	if _, err := parentEnd.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || strings.Contains(string(rest), "cause") {
		t.Errorf("child said %q, %v, want it to live until the signal", rest, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		t.Errorf("child ended with %v, want the signal", err)
	}
}

func TestAttach_NothingWithoutTheVariable(t *testing.T) {
	if err := os.Unsetenv(leash.EnvFD); err != nil {
		t.Fatal(err)
	}
	if ctx := leash.Attach(t.Context()); ctx != t.Context() {
		t.Error("the context is another")
	}
}

func TestAttach_BrokenLeashIsNoLeash(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, value := range []string{"", "x", "1", "-3", "9999", fmt.Sprint(file.Fd())} {
		t.Setenv(leash.EnvFD, value)
		ctx := leash.Attach(t.Context())
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), fault.Invalid) {
			t.Errorf("%q: cause is %v, want Invalid", value, context.Cause(ctx))
		}
		if _, ok := os.LookupEnv(leash.EnvFD); ok {
			t.Errorf("%q: the variable is still set", value)
		}
	}
}
