package presence

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/logging"
	"staddle.internal/kit/rpc"
	"staddle.internal/kit/run"
	presencev1 "staddle.internal/proto/gen/staddle/presence/v1"

	"staddle.internal/services/presence/internal/drain"
	"staddle.internal/services/presence/internal/shutdown"
)

const (
	// defaultKillAfter is how long sandboxes may take at most, where nobody says.
	defaultKillAfter = 5 * time.Minute
	// overLimit is how long presence may take to hear that the machine stays up.
	overLimit = 10 * time.Second
	// leaveLimit is how long presence may take to end the session of the node. One that
	// stays open ends by itself.
	leaveLimit = 3 * time.Second
)

// DrainMain ends the sandboxes of a running node in order, each within its own grace
// period, as before a shutdown of the machine, and keeps them ended until its next
// boot. With --over it says that the machine stays up after all: they run again. It
// returns the exit code: 0 when that is so, 2 if flags are wrong, 1 otherwise. It is a
// command that ends, for an operator: root or a member of the group of them. Safe to
// repeat.
func DrainMain() int {
	fs := flag.NewFlagSet("staddle-drain", flag.ExitOnError)
	root := fs.String("root", "", "folder to use instead of /etc/staddle, /var/lib/staddle and /run/staddle")
	killAfter := fs.Duration("kill-after", defaultKillAfter, "how long sandboxes may take at most, whatever their grace periods")
	over := fs.Bool("over", false, "the machine stays up: let the sandboxes run again")
	_ = fs.Parse(os.Args[1:]) // ends the process itself
	paths, err := config.At(*root)
	if err != nil {
		err = config.Wrong("--root", "%s", err)
	} else if *killAfter < 0 {
		err = config.Wrong("--kill-after", "%s is less than nothing", *killAfter)
	} else {
		ctx, stop := run.Signal(context.Background())
		defer stop()
		if *over {
			err = stayUp(ctx, paths)
		} else {
			err = runDrain(ctx, paths, *killAfter)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return run.ExitCode(err)
}

// runDrain asks presence, and sandboxhost where that does not answer.
func runDrain(ctx context.Context, paths config.Paths, killAfter time.Duration) (err error) {
	log := logging.New(os.Stderr, slog.LevelInfo, "drain")
	bootID, err := boottime.ID()
	if err != nil {
		return err
	}
	var ways []shutdown.Way
	for _, name := range []string{Name, sandboxhost} {
		if _, err := os.Stat(paths.Socket(name)); errors.Is(err, fs.ErrNotExist) {
			log.Warn("socket lost", logging.Path(paths.Socket(name)))
			continue // nobody will answer: where it is only lost, whoever made it has brought it back by now
		}
		conn, dialErr := rpc.Dial(paths.Socket(name), rpc.DialConfig{FailFast: true})
		if dialErr != nil {
			return dialErr
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		way := shutdown.Way{Name: name, Drain: drain.NewDirect(drain.HostAt(conn), bootID, killAfter).Drain}
		if name == Name {
			way.Drain = byPresence(presencev1.NewPresenceServiceClient(conn), killAfter)
		}
		ways = append(ways, way)
	}
	if len(ways) == 0 {
		return fault.New(fault.Unavailable, "end sandboxes: neither %s nor %s runs here", Name, sandboxhost)
	}
	if err := shutdown.Run(ctx, killAfter, log, ways...); err != nil {
		return err
	}
	if err := left(ctx, paths); err != nil {
		log.Warn("session not ended", logging.Err(err))
	}
	return nil
}

// left waits until presence has ended the session of the node, while a coordinator on
// this machine is still there.
func left(ctx context.Context, paths config.Paths) (err error) {
	conn, err := rpc.Dial(paths.Socket(Name), rpc.DialConfig{FailFast: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	stream, err := presencev1.NewPresenceServiceClient(conn).WatchPresence(ctx, &presencev1.WatchPresenceRequest{})
	for err == nil {
		var now *presencev1.WatchPresenceResponse
		if now, err = stream.Recv(); err == nil && now.GetPresence().GetSessionId() == 0 {
			return nil
		}
	}
	return err
}

// byPresence has presence drain the node.
func byPresence(api presencev1.PresenceServiceClient, killAfter time.Duration) func(context.Context, func(*presencev1.DrainProgress)) error {
	return func(ctx context.Context, tell func(*presencev1.DrainProgress)) error {
		ctx, cancel := context.WithCancel(ctx) // ends the stream with this function
		defer cancel()
		stream, err := api.Drain(ctx, &presencev1.DrainRequest{Shutdown: true, KillAfter: durationpb.New(killAfter)})
		for err == nil {
			var now *presencev1.DrainResponse
			if now, err = stream.Recv(); err == nil {
				tell(now.GetProgress())
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// stayUp tells presence that the shutdown is over.
func stayUp(ctx context.Context, paths config.Paths) (err error) {
	conn, err := rpc.Dial(paths.Socket(Name), rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, overLimit)
	defer cancel()
	if _, err := presencev1.NewPresenceServiceClient(conn).Uncordon(ctx, &presencev1.UncordonRequest{ShutdownOnly: true}); err != nil {
		return fmt.Errorf("let sandboxes run again: %w", err)
	}
	return nil
}
