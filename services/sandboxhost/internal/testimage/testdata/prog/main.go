// Command prog is what the test images run: each mode does one thing that a test
// needs to see.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if len(os.Args) < 2 {
		os.Args = append(os.Args, "sleep")
	}
	switch arg := argument(2); os.Args[1] {
	case "sleep": // until SIGTERM
		wait(syscall.SIGTERM)
	case "ignore-term": // until SIGKILL
		signal.Ignore(syscall.SIGTERM)
		wait(syscall.SIGUSR1)
	case "exit":
		os.Exit(number(arg))
	case "print": // N numbered lines, then wait
		print(number(arg))
		wait(syscall.SIGTERM)
	case "print-exit": // N numbered lines, then the end
		print(number(arg))
	case "exit-after": // milliseconds, then code
		time.Sleep(time.Duration(number(arg)) * time.Millisecond)
		os.Exit(number(argument(3)))
	case "show": // what it sees
		show()
		wait(syscall.SIGTERM)
	case "listen": // at an address, until SIGTERM
		_, err := net.Listen("tcp", arg)
		check(err)
		wait(syscall.SIGTERM)
	case "family": // ends by force only, and so do its children
		family(arg)
	case "once": // OPERATION:PATH..., then the end
		for _, operation := range os.Args[2:] {
			do(operation)
		}
	case "do": // the same, then wait
		for _, operation := range os.Args[2:] {
			do(operation)
		}
		fmt.Println("end")
		wait(syscall.SIGTERM)
	case "read": // all of standard input
		n, err := io.Copy(io.Discard, os.Stdin)
		fmt.Println("input:", n, err)
	case "eat": // memory until it is killed
		eat()
	case "connect": // to an address, then the end
		conn, err := net.DialTimeout("tcp", arg, 5*time.Second)
		check(err)
		_, err = fmt.Fprintln(conn, "hello")
		check(err)
		fmt.Println("connected from", conn.LocalAddr())
	default:
		fmt.Fprintln(os.Stderr, "no such mode:", os.Args[1])
		os.Exit(2)
	}
}

func argument(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func wait(signals ...os.Signal) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, signals...)
	<-c
}

func print(n int) {
	out, errs := bufio.NewWriter(os.Stdout), bufio.NewWriter(os.Stderr)
	for i := range n {
		fmt.Fprintf(out, "line %d\n", i)
		if i%10 == 0 {
			fmt.Fprintf(errs, "error %d\n", i)
		}
	}
	check(out.Flush())
	check(errs.Flush())
}

func show() {
	host, err := os.Hostname()
	check(err)
	dir, err := os.Getwd()
	check(err)
	fmt.Printf("hostname=%s\nuid=%d\ngid=%d\ncwd=%s\nargs=%s\n", host, os.Getuid(), os.Getgid(), dir, strings.Join(os.Args, " "))
	for _, e := range os.Environ() {
		fmt.Println("env:" + e)
	}
	for _, file := range []string{
		"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/proc/self/status", "/proc/self/cgroup", "/proc/self/limits", "/proc/self/oom_score_adj", "/proc/self/mounts",
	} {
		raw, err := os.ReadFile(file)
		check(err)
		for line := range strings.Lines(string(raw)) {
			fmt.Printf("%s:%s\n", file, strings.TrimSpace(line))
		}
	}
	addrs, err := net.InterfaceAddrs()
	check(err)
	for _, a := range addrs {
		fmt.Println("addr:" + a.String())
	}
	fds, err := os.ReadDir("/proc/self/fd")
	check(err)
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil {
			fmt.Println("fd:" + fd.Name() + ":" + target)
		}
	}
	fmt.Println("end")
}

// family starts children of all kinds, which do the same without more: in the same
// session and in one of their own.
func family(member string) {
	signal.Ignore(syscall.SIGTERM)
	for i := range 2 {
		if member != "" {
			break
		}
		child := exec.Command("/proc/self/exe", "family", "child")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: i == 1}
		child.Stdout = os.Stdout
		check(child.Start())
	}
	wait(syscall.SIGUSR1)
}

// do tries one thing and says in one line how it went.
func do(operation string) {
	name, path, _ := strings.Cut(operation, ":")
	var said string
	var err error
	switch name {
	case "read":
		var raw []byte
		raw, err = os.ReadFile(path)
		said = strconv.Quote(string(raw))
	case "write":
		err = os.WriteFile(path, []byte("written"), 0o644)
	case "list":
		var entries []os.DirEntry
		entries, err = os.ReadDir(path)
		for _, e := range entries {
			said += e.Name() + " "
		}
	case "stat":
		var st syscall.Stat_t
		err = syscall.Stat(path, &st)
		said = fmt.Sprintf("mode=%o uid=%d gid=%d", st.Mode&0o7777, st.Uid, st.Gid)
	case "size":
		var st syscall.Statfs_t
		err = syscall.Statfs(path, &st)
		said = fmt.Sprint(int64(st.Blocks) * st.Bsize)
	case "terminal":
		var size [8]byte
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, 1, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
		said = fmt.Sprint(errno == 0)
	case "unshare": // what seccomp refuses without a capability
		err = syscall.Unshare(syscall.CLONE_NEWUSER)
	case "run":
		var out []byte
		out, err = exec.Command(os.Args[0], "exit", "0").CombinedOutput()
		if path != "" {
			out, err = exec.Command(path, "exit", "0").CombinedOutput()
		}
		said = string(out)
	case "copy": // the program itself to path
		var raw []byte
		if raw, err = os.ReadFile(os.Args[0]); err == nil {
			err = os.WriteFile(path, raw, 0o755)
		}
	}
	if err != nil {
		said = "error " + err.Error()
	}
	fmt.Printf("%s=%s\n", operation, said)
}

func eat() {
	var all [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		all = append(all, b)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}
