package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"staddle.internal/kit/process"
	"staddle.internal/kit/run"

	"staddle.internal/services/supervisor"
)

// roleVariable makes the test binary be a supervisor, or a child of one.
const roleVariable = "SUPERVISOR_TEST_ROLE"

// A supervisor makes its children on the main thread, which only init can hold.
func init() {
	if os.Getenv(roleVariable) == "supervisor" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	role, mode, _ := strings.Cut(os.Getenv(roleVariable), ":")
	switch role {
	case "supervisor":
		if os.Getpid() == 1 {
			ownProc()
		}
		if mode == "panic" {
			panic("bang")
		}
		os.Exit(supervisor.Main())
	case "child":
		os.Exit(childMain(mode))
	}
	os.Exit(m.Run())
}

// childMain is a real process on kit/process that behaves as its mode says. Its
// first argument is its name.
func childMain(mode string) int {
	name := os.Args[1]
	os.Args = slices.Delete(os.Args, 1, 2)
	behaviour, known := behaviours[mode]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown mode", mode)
		return 9
	}
	frame := process.Frame{Name: name, OwnGate: true} // these names have no role with neighbours
	return frame.Main(func(_ context.Context, p *process.Process) ([]run.Member, error) {
		return []run.Member{{Name: "behaviour", StopTimeout: time.Minute, Run: func(ctx context.Context, ready func()) error {
			return behaviour(ctx, p, ready)
		}}}, nil
	})
}

var errAsked = errors.New("asked to fail")

var behaviours = map[string]func(context.Context, *process.Process, func()) error{
	"serve": func(ctx context.Context, _ *process.Process, ready func()) error {
		ready()
		<-ctx.Done()
		return nil
	},
	"fail": func(context.Context, *process.Process, func()) error { return errAsked },
	"fail once": func(ctx context.Context, p *process.Process, ready func()) error {
		mark := filepath.Join(p.Paths.Root, "failed-"+p.Name)
		if _, err := os.Stat(mark); err != nil {
			return errors.Join(errAsked, os.WriteFile(mark, nil, 0o600))
		}
		ready()
		<-ctx.Done()
		return nil
	},
	"fail until mended": func(ctx context.Context, p *process.Process, ready func()) error {
		if _, err := os.Stat(filepath.Join(p.Paths.Root, "mended")); err != nil {
			return errors.Join(errAsked, err)
		}
		ready()
		<-ctx.Done()
		return nil
	},
	"never ready": func(ctx context.Context, p *process.Process, _ func()) error {
		p.Status.SetNotReady("recovering 3 volumes")
		<-ctx.Done()
		return nil
	},
	"deaf to all": func(context.Context, *process.Process, func()) error {
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP) // as one that is stopped right after its start
	},
	"outside": func(ctx context.Context, p *process.Process, _ func()) error {
		p.Status.SetExternal("never had an overlay lease")
		<-ctx.Done()
		return nil
	},
	"serve and die": func(_ context.Context, p *process.Process, ready func()) error {
		ready()
		for changed := p.Status.Changed(); !p.Status.Ready(); changed = p.Status.Changed() {
			<-changed
		}
		<-time.After(5 * time.Millisecond)
		os.Exit(1)
		return nil
	},
	"deaf": func(_ context.Context, _ *process.Process, ready func()) error {
		ready()
		select {} // also when asked to end
	},
	"helper":  withHelper,
	"storing": withStore,
	"orders":  underOrders,
	"orphans": withOrphans,
	"chatty":  chatty,
}

// ownProc gives the first process of a pid namespace a /proc that shows it.
func ownProc() {
	err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, "mount /proc:", err)
		os.Exit(9)
	}
}

// underOrders ends, or is not ready, as a file says that appears.
func underOrders(ctx context.Context, p *process.Process, ready func()) error {
	ready()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	path := filepath.Join(p.Paths.Root, "order-"+p.Name)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		order, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		switch verb, rest, _ := strings.Cut(string(order), " "); verb {
		case "exit":
			code, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			os.Exit(code)
		case "signal":
			number, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			if err := syscall.Kill(os.Getpid(), syscall.Signal(number)); err != nil {
				return err
			}
		case "block":
			p.Status.Block("order", rest)
		case "unblock":
			p.Status.Unblock("order")
		}
	}
}

// withOrphans starts processes over and over whose parent is gone at once, and
// which end at times of their own.
func withOrphans(ctx context.Context, p *process.Process, ready func()) error {
	for range 4 {
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "i=0; while [ $i -lt 50 ]; do (sleep 0.$((i%10))$((i/10)); exit $i) & i=$((i+1)); done")
		if err := cmd.Run(); err != nil {
			return err
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

// chatty prints a hundred megabytes.
func chatty(ctx context.Context, _ *process.Process, ready func()) error {
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 100 << 10 {
		if _, err := os.Stderr.Write(line); err != nil {
			return err
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

// withHelper leaves a process of its own that has left its group and session.
func withHelper(ctx context.Context, p *process.Process, ready func()) error {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := appendLine(p, "helpers", strconv.Itoa(cmd.Process.Pid)); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// withStore keeps one pipe in the fd store over all its lives: the first writes
// into it, the others say what they read.
func withStore(ctx context.Context, p *process.Process, ready func()) error {
	kept := p.FDs.Take("log-")
	if r, ok := kept["log-1"]; ok {
		word := make([]byte, 5)
		if _, err := io.ReadFull(r, word); err != nil {
			return err
		}
		if err := appendLine(p, "words", string(word)); err != nil {
			return err
		}
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		if _, err := w.WriteString("firstother"); err != nil {
			return err
		}
		if err := errors.Join(p.FDs.Push("log-1", r), w.Close()); err != nil {
			return err
		}
		if err := appendLine(p, "words", "none"); err != nil {
			return err
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

func appendLine(p *process.Process, file, line string) error {
	f, err := os.OpenFile(filepath.Join(p.Paths.Root, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
