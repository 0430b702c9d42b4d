// Package initproc is the small first process of a container: it sets the
// environment that must not stand in the container's specification, starts the
// container's program, hands signals on to it, takes in the ends of processes that
// lost their parent, and ends as the program does.
//
// It runs inside, as the container's user, with nothing but the standard library
// and in as little memory as that allows: it lives as long as the container. It must
// never log what it reads, and never start anything but the program that it was told.
// It stands outside the trail; the engine puts it before a container's arguments.
package initproc

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// Exit codes where the program was never begun, as shells use them.
const (
	exitUsage         = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Flags, which come before "--".
const (
	// FlagEnv is followed by the path of a file with more environment: NAME=VALUE,
	// each ended by a zero byte.
	FlagEnv = "--env"
	// FlagExec becomes the program instead of watching it: for commands beside the
	// main process.
	FlagExec = "--exec"
	// End is before the program and its arguments.
	End = "--"
)

// maxEnv bounds the file with more environment.
const maxEnv = 4 << 20

// Main runs the process and returns its exit code.
func Main() int {
	debug.SetGCPercent(-1) // it allocates once, and lives long
	o, ok := parse(os.Args[1:])
	if !ok {
		say("usage: staddle-init [--env FILE] [--exec] -- PROGRAM [ARGUMENT...]")
		return exitUsage
	}
	env := syscall.Environ()
	if o.env != "" {
		more, err := readEnv(o.env)
		if err != nil {
			say("read environment: " + err.Error())
			return exitUsage
		}
		env = merge(env, more)
	}
	path, code := find(env, o.args[0])
	if code != 0 {
		return code
	}
	if o.exec {
		return cannotRun(o.args[0], syscall.Exec(path, o.args, env))
	}
	return watch(path, o.args, env)
}

type options struct {
	env  string
	exec bool
	args []string
}

func parse(args []string) (options, bool) {
	var o options
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case FlagEnv:
			if i++; i == len(args) {
				return o, false
			}
			o.env = args[i]
		case FlagExec:
			o.exec = true
		case End:
			o.args = args[i+1:]
			return o, len(o.args) > 0
		default:
			return o, false
		}
	}
	return o, false
}

// merge sets variables over those that are there.
func merge(env, more []string) []string {
	at := make(map[string]int, len(env))
	for i, entry := range env {
		at[nameOf(entry)] = i
	}
	for _, entry := range more {
		if i, ok := at[nameOf(entry)]; ok {
			env[i] = entry
			continue
		}
		at[nameOf(entry)] = len(env)
		env = append(env, entry)
	}
	return env
}

func nameOf(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	return name
}

// find looks the program up in the PATH that it will see.
func find(env []string, program string) (string, int) {
	for _, entry := range env {
		if nameOf(entry) == "PATH" {
			if err := syscall.Setenv("PATH", entry[len("PATH="):]); err != nil {
				return "", cannotRun(program, err)
			}
		}
	}
	path, err := exec.LookPath(program)
	if err != nil && !errors.Is(err, exec.ErrDot) { // the folder that it is in is what the spec says
		return "", cannotRun(program, err)
	}
	return path, 0
}

// cannotRun says why a program was not begun, and is the exit code that says so too.
func cannotRun(program string, err error) int {
	say("run " + program + ": " + err.Error())
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT) {
		return ExitNotFound
	}
	return ExitNotExecutable
}

// watch starts the program, and returns the code that it ended with.
func watch(path string, args, env []string) int {
	signals := notify()
	attr := &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2},
		// A group of its own: what is sent to the program's group does not come here too.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	}
	if isTerminal(0) {
		attr.Sys.Foreground, attr.Sys.Ctty = true, 0
	}
	child, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return cannotRun(args[0], err)
	}
	go func() { // ends with the process
		for s := range signals {
			if n, ok := s.(syscall.Signal); ok && n != syscall.SIGCHLD {
				_ = syscall.Kill(child, n) // one that has ended is noticed below
			}
		}
	}()
	code := reap(child)
	signal.Stop(signals)
	return code
}

// reap takes in ends until the program has ended. What is left then the kernel ends
// with this process.
func reap(child int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			say("wait for the program: " + err.Error())
			return exitUsage
		case pid != child:
		case status.Signaled():
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}
