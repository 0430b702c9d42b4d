// Package process is the frame of every process of Staddle, so that its main
// reads as a story: what it is called, what it is made of, in which order.
//
// It owns the flags that all have, the loading of the configuration, the logger,
// the leash and the signals, the lock on the data folder, the socket, the server
// with its status, the wait for neighbours, the word to whoever supervises, and
// the exit code. It must never know what a process does: that is in the members
// that build returns. In the trail it is the second page of each process, after
// its main.
package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
	"staddle.internal/kit/leash"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
	"staddle.internal/kit/version"
)

// Build makes the members of a process from its frame, and registers its services
// on p.Server. It opens nothing: members do. They start in order after the
// process answers health and after its neighbours are ready; when all are ready
// the process is.
type Build func(ctx context.Context, p *Process) ([]run.Member, error)

// Frame says how a process differs from the others before it is built.
type Frame struct {
	// Name of the process, such as "sandboxhost".
	Name string
	// File is the name of its own configuration file below <etc>. Empty means
	// node.yaml.
	File string
	// Load reads that own file; everything wrong with it is a *config.Error. Nil
	// for processes that use node.yaml. With it node.yaml is optional.
	Load func(path string) error
	// Flags adds flags of its own.
	Flags func(*flag.FlagSet)
	// Processors bounds how many it uses at once, unless the environment says something
	// else. A process that is woken often and has little to do each time spends most of
	// that on waking further threads to help. 0 means as many as there are.
	Processors int
	// Env lists further environment variables with our prefix that it reads.
	Env []string
	// OwnGate leaves it to build where among the members Process.Gate stands.
	OwnGate bool
	// Kept is what the program before a re-exec left open. Nil means that there was
	// none.
	Kept *Kept
}

// Main runs a process that uses node.yaml and returns its exit code: 0 after a
// signal, 2 if flags or configuration are wrong, 1 otherwise.
func Main(name string, build Build) int { return Frame{Name: name}.Main(build) }

// Main is the same for a process with ways of its own.
func (f Frame) Main(build Build) int {
	return f.main(os.Args[1:], os.Stdout, os.Stderr, build)
}

func (f Frame) main(args []string, stdout, stderr io.Writer, build Build) int {
	sparing(f.Processors)
	ctx := leash.Attach(context.Background())
	ctx, stop := run.Signal(ctx)
	defer stop()

	o, err := f.parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return run.ExitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return run.ExitCode(err)
	}
	if o.version {
		fmt.Fprintln(stdout, version.String())
		return run.ExitOK
	}
	node, hash, err := f.load(o)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return run.ExitCode(err)
	}
	if o.check {
		fmt.Fprintf(stdout, "%s: the configuration is valid\n", o.config)
		return run.ExitOK
	}
	level := logging.NewLevel(o.level)
	log := logging.New(stderr, level, f.Name)
	p := &Process{Name: f.Name, Paths: o.paths, Config: node, ConfigPath: o.config, Log: log, Level: level}
	f.warnEnv(log)
	log.Info("process started", logging.Version(version.String()), logging.ConfigHash(hash), logging.Path(o.paths.Socket(f.Name)))
	err = f.run(ctx, p, build)
	return report(log, err)
}

// report tells the cause of the end once, and returns the exit code for it.
func report(log *slog.Logger, err error) int {
	code := run.ExitCode(err)
	if code == run.ExitOK {
		log.Info("process stopped", logging.Reason(fmt.Sprint(err)))
		return code
	}
	log.Error("process failed", logging.Err(err))
	return code
}

// options are the flags that all processes have.
type options struct {
	paths   config.Paths
	config  string
	level   slog.Level
	check   bool
	version bool
}

func (f Frame) parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("staddle-"+f.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	fs.StringVar(&o.config, "config", "", "configuration file (default "+f.file()+" in the folder of configuration)")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	fs.BoolVar(&o.check, "check-config", false, "check the configuration and exit")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	if f.Flags != nil {
		f.Flags(fs)
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, config.Wrong(fs.Name(), "%s", err)
	}
	if fs.NArg() > 0 {
		return o, config.Wrong(fs.Name(), "argument %q is unknown; there are only flags, see --help", fs.Arg(0))
	}
	return o, o.complete(*root, *level, f.file())
}

// complete derives what depends on several flags.
func (o *options) complete(root, level, file string) (err error) {
	if o.paths, err = config.At(root); err != nil {
		return config.Wrong("--root", "%s", err)
	}
	if o.level, err = logging.ParseLevel(level); err != nil {
		return config.Wrong("--log-level", "%s", err)
	}
	if o.config == "" {
		o.config = filepath.Join(o.paths.Etc(), file)
	}
	return nil
}

func (f Frame) file() string {
	if f.File == "" {
		return "node.yaml"
	}
	return f.File
}

// load reads the configuration and a digest of the file that it came from.
func (f Frame) load(o options) (*config.Node, string, error) {
	data, err := config.ReadFile(o.config)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(data)
	node, err := f.loadNode(o)
	if err != nil {
		return nil, "", err
	}
	node.Resolve(o.paths)
	return node, hex.EncodeToString(sum[:6]), nil
}

func (f Frame) loadNode(o options) (*config.Node, error) {
	if f.Load == nil {
		return config.LoadNode(o.config)
	}
	if err := f.Load(o.config); err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.paths.NodeFile()); errors.Is(err, os.ErrNotExist) {
		node := config.DefaultNode()
		return &node, nil
	}
	return config.LoadNode(o.paths.NodeFile())
}

// warnEnv names variables that look like ours and do nothing.
func (f Frame) warnEnv(log *slog.Logger) {
	known := append([]string{logging.FormatVariable, leash.EnvFD, boottime.EnvID}, f.Env...)
	for _, text := range config.UnknownEnv(os.Environ(), known) {
		log.Warn("environment variable ignored", logging.Reason(text))
	}
}
