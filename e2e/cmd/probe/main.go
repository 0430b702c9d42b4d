// Command probe is the workload of the end-to-end tests and benchmarks: one
// static program with a verb for each behaviour that they need.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `probe VERB [ARG...]
  sleep                  stay until SIGTERM, then exit 0
  deaf                   stay and ignore SIGTERM
  farewell FILE AFTER    stay until SIGTERM, write that down in FILE, and what comes
                         after a while, and exit 0
  exit CODE [AFTER]      exit with CODE, after a while
  die SIGNAL             end by SIGNAL
  until CODE             stay; exit with CODE at SIGUSR1, with 0 at SIGTERM
  mute                   point standard output and error elsewhere, then stay
  count EVERY            print a number per line for ever, from 0, one each EVERY
  lines N                print N numbered lines and exit 0
  env NAME               print a variable and stay
  sums NAME FILE         print the SHA-256 of a variable and of a file and stay
  burn                   use as much processor time as there is
  cache FILE BYTES       write a file of so many bytes, read it twice and stay
  eat BYTES              use so much memory and stay
  feed BYTES [CODE]      have a child use so much memory; print how it ended and
                         stay, or exit with CODE
  serve [ADDRESS:]PORT   answer each line on tcp with itself
  greet PORT             tell everybody on tcp and udp where he comes from
  tended PORT BYTES      count as "count 5ms"; answer on tcp, not between SIGUSR1 and
                         SIGUSR2; at SIGHUP have a child use so much memory
  ask HOST:PORT TEXT     send a line, print the answer and stay
  resolve NAME EVERY     look a name up for ever, one after a while: print the
                         addresses, or "none" and why
  where                  print user, working directory and arguments and exit 0
  cat                    copy standard input to standard output
  say OUT ERR            write to standard output and to standard error
  size                   print rows and columns of the terminal, again when they change
  trap N CODE            name each signal that comes; exit with CODE after N
  bursts N EVERY ROUNDS  print N long numbered lines, ROUNDS times, then one at a time
  flood BYTES RATE       print so many bytes as lines of 100, not more than RATE of
                         them a second, 0 for all at once, and exit 0
  odd                    print lines of odd lengths and bytes, the last without an end
  nofile                 print the limits of open files
  self                   print who it is and what it may do
  leave                  exit 0 and leave a child that holds the outputs open`

func main() {
	if len(os.Args) < 2 {
		fail(usage)
	}
	verb, args := os.Args[1], os.Args[2:]
	switch verb {
	case "sleep":
		stay()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf")
		forever()
	case "farewell":
		farewell(args[0], duration(args[1]))
	case "exit":
		if len(args) > 1 {
			time.Sleep(duration(args[1]))
		}
		os.Exit(number(args, 0))
	case "die":
		signal.Reset()
		must(syscall.Kill(os.Getpid(), syscall.Signal(number(args, 0))))
		forever()
	case "until":
		until(number(args, 0))
	case "mute":
		mute()
	case "count":
		count(duration(args[0]))
	case "lines":
		w := bufio.NewWriter(os.Stdout)
		for i := range number(args, 0) {
			fmt.Fprintf(w, "line %d\n", i)
		}
		must(w.Flush())
	case "env":
		fmt.Printf("%s=%s\n", args[0], os.Getenv(args[0]))
		stay()
	case "sums":
		raw, err := os.ReadFile(args[1])
		must(err)
		fmt.Printf("%x %x\n", sha256.Sum256([]byte(os.Getenv(args[0]))), sha256.Sum256(raw))
		stay()
	case "burn":
		go stay()
		for n := 0; ; n++ {
			sha256.Sum256([]byte{byte(n)})
		}
	case "cache":
		cache(args[0], number(args, 1))
	case "eat":
		eat(number(args, 0))
	case "feed":
		feed(args)
	case "serve":
		serve(args[0])
	case "greet":
		greet(args[0])
	case "tended":
		tended(args[0], args[1])
	case "ask":
		ask(args[0], args[1])
	case "resolve":
		resolve(args[0], duration(args[1]))
	case "where":
		dir, err := os.Getwd()
		must(err)
		fmt.Printf("uid=%d gid=%d dir=%s args=%q\n", os.Getuid(), os.Getgid(), dir, args)
	default:
		if !inside(verb, args) {
			fail(usage)
		}
	}
}

// stay waits for SIGTERM. As the first process of a pid namespace it would
// otherwise not be ended by it.
func stay() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	os.Exit(0)
}

// farewell writes one line when it is asked to end, and one when it had its time.
func farewell(path string, after time.Duration) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Println("here")
	<-stop
	f, err := os.Create(path)
	must(err)
	for _, word := range []string{"asked", "ended"} {
		_, err = fmt.Fprintln(f, word, time.Now().UnixMilli())
		must(err)
		must(f.Sync())
		if word == "asked" {
			time.Sleep(after)
		}
	}
	os.Exit(0)
}

// until stays until it is told that its work is done.
func until(code int) {
	go stay()
	done := make(chan os.Signal, 1)
	signal.Notify(done, syscall.SIGUSR1)
	fmt.Println("waiting")
	<-done
	os.Exit(code)
}

// mute gives back the outputs that it was started with.
func mute() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must(err)
	for _, fd := range []int{1, 2} {
		must(syscall.Dup3(int(null.Fd()), fd, 0))
	}
	stay()
}

// forever never returns. An empty select would be taken for a deadlock.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func count(every time.Duration) {
	go stay()
	for i := 0; ; i++ {
		if _, err := fmt.Println(i); err != nil {
			os.Exit(1)
		}
		time.Sleep(every)
	}
}

// cache has the kernel keep a file in memory that this process does not.
func cache(path string, size int) {
	f, err := os.Create(path)
	must(err)
	part := make([]byte, 1<<20)
	for range size / len(part) {
		_, err := f.Write(part)
		must(err)
	}
	must(f.Sync())
	for range 2 {
		_, err := f.Seek(0, io.SeekStart)
		must(err)
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, f, part)
		must(err)
	}
	fmt.Println("cached", size)
	stay()
}

func eat(n int) {
	debug.SetGCPercent(-1)
	b := make([]byte, n)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Printf("ate %d\n", n)
	stay()
}

// feed outlives a child that takes more memory than there may be.
func feed(args []string) {
	child := exec.Command("/proc/self/exe", "eat", args[0])
	fmt.Println("child:", child.Run())
	if len(args) > 1 {
		os.Exit(number(args, 1))
	}
	stay()
}

func serve(at string) {
	if !strings.Contains(at, ":") {
		at = ":" + at
	}
	l, err := net.Listen("tcp", at)
	must(err)
	go stay()
	fmt.Println("serving")
	for {
		c, err := l.Accept()
		must(err)
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// tended gives each of those that look after a container something to see: who reads
// output, who connects, who counts what the kernel ends for memory.
func tended(port, bytes string) {
	news := make(chan os.Signal, 8)
	signal.Notify(news, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	go count(5 * time.Millisecond)
	l, err := net.Listen("tcp", ":"+port)
	must(err)
	for s := range news {
		switch s {
		case syscall.SIGUSR1:
			must(l.Close())
		case syscall.SIGUSR2:
			l, err = net.Listen("tcp", ":"+port)
			must(err)
		default:
			_ = exec.Command("/proc/self/exe", "eat", bytes).Run() // it is ended for that
		}
	}
}

func ask(address, text string) {
	var c net.Conn
	var err error
	for range 100 {
		if c, err = net.DialTimeout("tcp", address, time.Second); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	must(err)
	fmt.Fprintln(c, text)
	line, err := bufio.NewReader(c).ReadString('\n')
	must(err)
	fmt.Print("answer ", line)
	stay()
}

// resolve prints what a name is found as whenever that changes.
func resolve(name string, every time.Duration) {
	go stay()
	for before := ""; ; time.Sleep(every) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		addrs, err := net.DefaultResolver.LookupHost(ctx, name)
		cancel()
		slices.Sort(addrs)
		now := strings.Join(addrs, " ")
		if err != nil {
			now = "none: " + err.Error()
		}
		if now != before {
			fmt.Println(time.Now().UnixMilli(), now)
		}
		before = now
	}
}

func number(args []string, i int) int {
	if i >= len(args) {
		fail(usage)
	}
	n, err := strconv.Atoi(args[i])
	must(err)
	return n
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	must(err)
	return d
}

func must(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(64)
}
