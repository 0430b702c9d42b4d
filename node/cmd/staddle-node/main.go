// Command staddle-node holds all processes of a node in one file, which several
// processes share in memory. The name under which it is called, such as
// staddle-storage, or else its first argument, says which one it is.
//
// It must never hold anything but this choice.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"staddle.internal/kit/run"
	"staddle.internal/kit/version"

	"staddle.internal/services/clusteraccess"
	"staddle.internal/services/presence"
	"staddle.internal/services/sandboxhost"
	"staddle.internal/services/storage"
	"staddle.internal/services/supervisor"
)

// processes are the mains by name.
var processes = map[string]func() int{
	"clusteraccess":     clusteraccess.Main,
	"containerd-config": supervisor.ContainerdConfigMain, // a command that ends
	"drain":             presence.DrainMain,              // a command that ends
	"mend-sockets":      supervisor.MendSocketsMain,      // a command that ends
	"presence":          presence.Main,
	"sandbox-agent":     sandboxhost.AgentMain,
	"sandboxhost":       sandboxhost.Main,
	"storage":           storage.Main,
	"storage-agent":     storage.AgentMain,
	"supervisor":        supervisor.Main,
	"teardown":          sandboxhost.TeardownMain, // a command that ends
}

// The main thread cannot be thrown away. sandboxhost makes namespaces, and the
// supervisor children with a parent-death signal, on threads of their own; held
// here, the main goroutine keeps the main thread from becoming one of those. The
// other processes need no such thing and must not pay for it: a locked main
// goroutine costs a change of threads each time it runs. It has to be in init,
// which alone is sure to run on the main thread.
func init() {
	if name, _ := choose(os.Args); name == "sandboxhost" || name == "supervisor" {
		runtime.LockOSThread()
	}
}

func main() {
	name, args := choose(os.Args)
	if main, ok := processes[name]; ok {
		os.Args = args
		os.Exit(main())
	}
	os.Exit(usage(name, os.Stdout, os.Stderr))
}

// choose returns the name of the process that a command line means, and the
// command line that its main is to see.
func choose(args []string) (name string, rest []string) {
	if len(args) == 0 {
		return "", nil
	}
	called := strings.TrimPrefix(filepath.Base(args[0]), "staddle-")
	if _, ok := processes[called]; ok {
		return called, args
	}
	if len(args) == 1 {
		return "", args
	}
	return args[1], append([]string{"staddle-" + args[1]}, args[2:]...)
}

// usage answers everything that is no process.
func usage(name string, stdout, stderr io.Writer) int {
	known := strings.Join(slices.Sorted(maps.Keys(processes)), ", ")
	switch name {
	case "--version", "-version":
		fmt.Fprintln(stdout, version.String())
		return run.ExitOK
	case "--help", "-help", "-h":
		fmt.Fprintf(stdout, "usage: staddle-node PROCESS [flags]\nprocesses: %s\n", known)
		return run.ExitOK
	case "":
		fmt.Fprintf(stderr, "staddle-node: name a process: %s\n", known)
	default:
		fmt.Fprintf(stderr, "staddle-node: %.40q is no process; there are %s\n", name, known)
	}
	return run.ExitConfig
}
