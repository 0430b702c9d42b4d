package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/leash"
)

// lockTimeout is how long a start waits for its predecessor, which may take as
// long to end as its leash allows.
const lockTimeout = leash.HardExit + time.Second

// lockPause is how often it looks: the kernel offers no wait that ends in time.
const lockPause = 10 * time.Millisecond

// lock claims the data folder of a process. Two processes never hold it; the
// kernel gives it back when the holder ends in any way.
func lock(ctx context.Context, process, path string) (held *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	deadline := time.Now().Add(lockTimeout)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fault.New(fault.Conflict, "start %s: already running as pid %s, which holds %s", process, holder(f), path), f.Close())
		}
		if err := backoff.Wait(ctx, lockPause); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// unlock gives the lock back: it ends with the descriptor, and nothing is lost.
func unlock(held *os.File) { _ = held.Close() }

// relock takes over the lock from before a re-exec. It is the caller's own, unless
// the file at path is another one by now.
func relock(held *os.File, process, path string) (*os.File, error) {
	ours, err := held.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(path); err == nil && !os.SameFile(ours, there) {
			err = fault.New(fault.Conflict, "the lock that was handed over is not that file")
		}
	}
	if err == nil {
		err = unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s for %s: %w", path, process, err), held.Close())
	}
	return held, nil
}

// Hold claims the data folders of several processes at once, so that none of them
// runs or starts while whoever holds them takes away what they stand on. A process
// that never ran here has nothing to claim. It returns fault.Conflict if one runs.
func Hold(ctx context.Context, paths config.Paths, processes ...string) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			unlock(f)
		}
	}
	for _, name := range processes {
		path := paths.Lock(name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		f, err := lock(ctx, name, path)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, f)
	}
	return release, nil
}

// writePID says who holds the lock. It writes over what is there before it cuts
// the rest off: that needs no room, which a full disk may not have.
func writePID(f *os.File) error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// holder reads who holds the lock; it is only for the message.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid := strings.TrimSpace(string(text))
	if err != nil || pid == "" {
		return "unknown"
	}
	return pid
}
