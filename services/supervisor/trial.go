package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	supervisorv1 "staddle.internal/proto/gen/staddle/supervisor/v1"

	"staddle.internal/kit/leash"
	"staddle.internal/kit/rpc"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/handover"
)

// maxTrial bounds how long a program may take until it serves, which needs nothing
// but this machine.
const maxTrial = 20 * time.Second

// notForTrial are variables that tie a process to others: to whoever supervises it, to
// who made it, and to those who are told what it does.
var notForTrial = []string{"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "OTEL_", leash.EnvFD + "="}

// try starts a program as the next one of this process would be, with a copy of the
// state and stand-ins for all files, and returns nil when it has taken them over and
// serves. The program is ended in any case. A program that ends, panics, hangs, or
// is none of ours is found out here, where it is another process.
func (r *replacement) try(ctx context.Context, program string) (err error) {
	var state handover.State
	if err := r.handOver(ctx, func(s handover.State) error { state = s; return nil }); err != nil {
		return err
	}
	path := filepath.Join(r.process.Paths.Run(), name, child.TrialSocket)
	files, err := rehearsal(state, path)
	if files != nil {
		defer func() { err = errors.Join(err, files.close()) }()
	}
	if err != nil {
		return err
	}
	trial, err := r.children.Try(ctx, child.Order{
		Path: program, Args: os.Args, Env: r.trialEnvironment(), Files: files.passed,
	})
	if err != nil {
		return refused(program, err)
	}
	if err := r.serves(ctx, trial, path); err != nil {
		return errors.Join(refused(program, err), trial.End())
	}
	return trial.End()
}

// trialEnvironment names the state as the first file.
func (r *replacement) trialEnvironment() []string {
	environ := slices.DeleteFunc(slices.Clone(r.environ), func(entry string) bool {
		return slices.ContainsFunc(notForTrial, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
	return append(environ, handover.EnvFD+"="+strconv.Itoa(child.FirstFile))
}

// serves asks the program what will be asked of the next one: whether it has taken
// over from this one.
func (r *replacement) serves(ctx context.Context, trial *child.Trial, path string) error {
	limit := min(maxTrial, r.process.Config.Supervisor.StartTimeout.Std())
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { // ends with ctx, waited for above
		select {
		case <-trial.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	defer cancel()
	conn, err := rpc.Dial(path, rpc.DialConfig{})
	if err != nil {
		return err
	}
	req := &supervisorv1.RestartSupervisorRequest{Life: r.loop.History().Life(), Number: r.number}
	answer, err := supervisorv1.NewSupervisorServiceClient(conn).RestartSupervisor(ctx, req)
	if err := conn.Close(); err != nil {
		return err
	}
	if err == nil {
		if got := answer.GetProgram().GetNumber(); got != r.number+1 {
			return fmt.Errorf("it calls itself program %d, want %d", got, r.number+1)
		}
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it did not serve within %s: %w", limit, errors.Join(trial.End(), errors.New(trial.Said())))
	}
	select {
	case <-trial.Done():
		return fmt.Errorf("it ended in its trial with %s", trial.Said())
	default:
		return fmt.Errorf("ask it in its trial: %w", err)
	}
}

// rehearsed are the files of a trial.
type rehearsed struct {
	passed   []*os.File // the state, the socket, and the stand-ins
	listener interface{ Close() error }
}

// rehearsal makes the files of a trial that serves at path.
func rehearsal(state handover.State, path string) (_ *rehearsed, err error) {
	const own = 2 // the state and the socket
	state, standIns, err := state.Rehearsal(child.FirstFile + own)
	files := &rehearsed{passed: standIns}
	if err != nil {
		return files, err
	}
	state.Socket = child.FirstFile + own - 1
	listener, err := rpc.Listen(path, rpc.DefaultSocketMode)
	if err != nil {
		return files, err
	}
	files.listener = listener
	copied, ok := listener.(interface{ File() (*os.File, error) })
	if !ok {
		return files, fmt.Errorf("pass socket %s: it has no descriptor", path)
	}
	socket, err := copied.File()
	if err != nil {
		return files, err
	}
	files.passed = append([]*os.File{socket}, files.passed...)
	written, err := handover.Write(state)
	if err != nil {
		return files, err
	}
	files.passed = append([]*os.File{written}, files.passed...)
	return files, nil
}

func (r *rehearsed) close() error {
	err := child.CloseAll(r.passed)
	if r.listener != nil {
		err = errors.Join(err, r.listener.Close())
	}
	return err
}
