package sandboxhost

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"staddle.internal/kit/config"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/run"
	"staddle.internal/services/sandboxhost/internal/teardown"
)

// TeardownMain takes everything of a stopped node out of the kernel and returns
// the exit code: 0 when nothing is left, 2 if flags or configuration are wrong, 1
// otherwise. It is a command that ends, not a process of the node.
func TeardownMain() int {
	fs := flag.NewFlagSet("staddle-teardown", flag.ExitOnError)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	file := fs.String("config", "", "configuration file (default node.yaml in the folder of configuration)")
	grace := fs.Duration("grace", 10*time.Second, "how long workloads may take to end by themselves")
	_ = fs.Parse(os.Args[1:]) // ends the process itself
	if err := runTeardown(*root, *file, *grace); err != nil {
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
	ctx, stop := run.Signal(context.Background())
	defer stop()
	log := logging.New(os.Stderr, slog.LevelInfo, "teardown")
	return teardown.Run(ctx, teardown.Config{Paths: paths, Node: node, Grace: grace}, log)
}
