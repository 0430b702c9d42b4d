// Package machine owns what "staddle up" and "staddle down" do to this machine:
// prerequisites, installed binaries, configuration files, the supervisor's
// process, and the first sandbox.
//
// Every step looks first and does only what is missing, so that a second run is
// harmless and says what was there. It must never overwrite a configuration
// file, and never end or remove what it did not find by the installation's own
// lock, socket or folders. In the trail it stands before everything else: it
// starts the supervisor that starts the node.
package machine

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"staddle.internal/kit/config"

	"staddle.internal/cli/internal/target"
)

// supervisorName is the process that starts the others.
const supervisorName = "supervisor"

// Where binaries are installed without a root, and where a shell finds the command.
const (
	systemBin     = "/usr/local/lib/staddle"
	systemCommand = "/usr/local/bin/staddle"
)

// binaries are what an installation consists of, as they lie beside the
// executable of the command line.
var binaries = []string{"staddle", "staddle-node", "staddle-init", "staddle-coordinator", "containerd", "containerd-shim-runc-v2", "runc"}

// Machine is one installation on this machine.
type Machine struct {
	// Paths of the installation.
	Paths config.Paths
	// Source is the folder of the binaries to install.
	Source string
	// Out is told the result, Err what is going on.
	Out, Err io.Writer
	// Home is the person whose context file is kept. Nil means nobody.
	Home *target.Home
}

// Bin is the folder of the installed binaries. They are copied there because
// the users of the processes may not enter everybody's home.
func (m *Machine) Bin() string {
	if m.Paths.Root == "" {
		return systemBin
	}
	return filepath.Join(m.Paths.Root, "bin")
}

func (m *Machine) binary(name string) string { return filepath.Join(m.Bin(), name) }

// say writes one line for people; that it cannot be written changes nothing.
func (m *Machine) say(format string, args ...any) {
	_, _ = fmt.Fprintf(m.Err, format+"\n", args...)
}

// rooted are the flags that name the installation to its own binaries.
func (m *Machine) rooted(args ...string) []string {
	if m.Paths.Root == "" {
		return args
	}
	return append(args, "--root", m.Paths.Root)
}

// command is one of the installed binaries, with the environment of a fresh
// boot: nothing of the caller's but what a program needs to run.
func (m *Machine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(m.binary(name), m.rooted(args...)...)
	cmd.Env = environment(m.Bin(), os.Environ())
	cmd.Dir = "/"
	return cmd
}

// environment keeps what is ours and what telemetry, traces and registries are
// told by, and leaves the rest of the caller's shell behind.
func environment(bin string, environ []string) []string {
	out := []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		upper := strings.ToUpper(name)
		ours := strings.HasPrefix(name, "STADDLE_") && name != "STADDLE_ROOT"
		proxy := upper == "HTTP_PROXY" || upper == "HTTPS_PROXY" || upper == "NO_PROXY" // for registries
		if ours || proxy || strings.HasPrefix(name, "OTEL_") || name == "HOME" || name == "LANG" || name == "TZ" {
			out = append(out, entry)
		}
	}
	return out
}

// Limits of what up and down wait for, and of a question on the way.
const (
	readyLimit = 2 * time.Minute
	stopLimit  = 90 * time.Second
	turnLimit  = 2 * time.Minute
	askLimit   = 3 * time.Second
)
