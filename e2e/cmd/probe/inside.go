package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"
)

// inside has the verbs of what people run beside a workload.
func inside(verb string, args []string) bool {
	switch verb {
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		must(err)
	case "sum": // of its input, and how much that was
		sum := sha256.New()
		n, err := io.Copy(sum, os.Stdin)
		must(err)
		fmt.Printf("%x %d\n", sum.Sum(nil), n)
	case "say":
		fmt.Fprint(os.Stdout, args[0])
		fmt.Fprint(os.Stderr, args[1])
	case "size":
		size()
	case "trap":
		trap(args)
	case "nofile":
		var l syscall.Rlimit
		must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l))
		fmt.Println(l.Cur, l.Max)
	case "self":
		raw, err := os.ReadFile("/proc/self/status")
		must(err)
		for line := range strings.Lines(string(raw)) {
			for _, key := range []string{"Uid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"} {
				if strings.HasPrefix(line, key) {
					fmt.Print(line)
				}
			}
		}
	case "leave":
		leave()
	case "bursts":
		bursts(number(args, 0), duration(args[1]), number(args, 2))
	case "flood":
		flood(number(args, 0), number(args, 1))
	case "odd":
		odd()
	default:
		return false
	}
	return true
}

// size prints the rows and columns of the terminal, and again whenever they change.
func size() {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	for {
		var w struct{ rows, columns, x, y uint16 }
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, 1, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&w))); errno != 0 {
			fail(errno.Error())
		}
		fmt.Println(w.rows, w.columns)
		<-changes
	}
}

// trap names each signal that comes, and exits with a code at the last of so many.
func trap(args []string) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	fmt.Println("ready")
	for range number(args, 0) {
		fmt.Println(<-signals)
	}
	os.Exit(number(args, 1))
}

// leave ends at once and leaves a child that holds its outputs, in a session of its own.
func leave() {
	child := exec.Command("/proc/self/exe", "sleep")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(child.Start())
	fmt.Println("left")
	os.Exit(0)
}
