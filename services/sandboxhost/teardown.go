package sandboxhost

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
	"staddle.internal/services/sandboxhost/internal/teardown"
)

// TeardownMain takes everything of a stopped node out of the kernel and returns
// the exit code: 0 when nothing is left, 2 if flags or configuration are wrong, 1
// otherwise. Each workload has its own grace period where the journal tells it. It is a command that ends, not a process of the node.
func TeardownMain() int {
	fs := flag.NewFlagSet("staddle-teardown", flag.ExitOnError)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	file := fs.String("config", "", "configuration file (default node.yaml in the folder of configuration)")
	grace := fs.Duration("grace", 10*time.Second, "how long workloads may take to end by themselves at most, whatever their own grace periods say")
	ifStopped := fs.Bool("if-stopped", false, "while a process of the node runs take nothing away, and succeed")
	_ = fs.Parse(os.Args[1:]) // ends the process itself
	err := runTeardown(*root, *file, *grace)
	if *ifStopped && errors.Is(err, fault.Conflict) {
		fmt.Fprintln(os.Stderr, "nothing taken away:", err)
		return run.ExitOK
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run.ExitCode(err)
	}
	return run.ExitOK
}

func runTeardown(root, file string, grace time.Duration) error {
	paths, err := config.At(root)
	if err != nil {
		return config.Wrong("--root", "%s", err)
	}
	if file == "" {
		file = paths.NodeFile()
	}
	node, err := config.LoadNode(file)
	if err != nil {
		return err
	}
	node.Resolve(paths)
	bootID, err := boottime.ID()
	if err != nil {
		return err
	}
	ctx, stop := run.Signal(context.Background())
	defer stop()
	log := logging.New(os.Stderr, slog.LevelInfo, "teardown")
	return teardown.Run(ctx, teardown.Config{Paths: paths, Node: node, Limit: grace, BootID: bootID}, log)
}
