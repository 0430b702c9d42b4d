package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
)

// secondLook is when the sockets are looked at again: systemd, which starts this when
// something changes beside them, does not see what changes while it runs.
const secondLook = time.Second

// MendSocketsMain has the paths of sockets lead to them again, from their second names,
// where somebody has removed the first, as the supervisor does while it runs. It returns
// the exit code: 0 when all lead there, 2 if flags are wrong, 1 otherwise. It is a
// command that ends, for a node without a supervisor. Safe to repeat.
func MendSocketsMain() int {
	fs := flag.NewFlagSet("staddle-mend-sockets", flag.ExitOnError)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	_ = fs.Parse(os.Args[1:]) // ends the process itself
	ctx, stop := run.Signal(context.Background())
	defer stop()
	if err := mendSockets(ctx, *root, logging.New(os.Stderr, slog.LevelInfo, "mend-sockets")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run.ExitCode(err)
	}
	return run.ExitOK
}

func mendSockets(ctx context.Context, root string, log *slog.Logger) error {
	paths, err := config.At(root)
	if err != nil {
		return config.Wrong("--root", "%s", err)
	}
	if err := mendAll(paths, log); err != nil {
		return err
	}
	if err := backoff.Wait(ctx, secondLook); err != nil {
		return err
	}
	return mendAll(paths, log)
}

// mendAll looks at every socket that has a second name.
func mendAll(paths config.Paths, log *slog.Logger) error {
	spares, err := os.ReadDir(paths.SocketSpares())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list second names of sockets: %w", err)
	}
	if err := os.MkdirAll(paths.Run(), 0o755); err != nil { // it may be what was removed
		return fmt.Errorf("make folder of sockets: %w", err)
	}
	var errs []error
	for _, s := range spares {
		path, spare := filepath.Join(paths.Run(), s.Name()), filepath.Join(paths.SocketSpares(), s.Name())
		if rpc.SameSocket(path, spare) {
			continue
		}
		if err := rpc.Relink(path, spare); err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("socket brought back", logging.Path(path))
	}
	return errors.Join(errs...)
}
