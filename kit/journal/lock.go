package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// lockPoll is how often a held lock is tried again.
const lockPoll = 20 * time.Millisecond

// acquire takes the lock file, which is never removed, for as long as the result
// is open. Its text is the pid of the holder, for people.
func acquire(path string, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			sign(f)
			return f, nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		case time.Now().After(deadline):
			held := fault.New(fault.Conflict, "%s is held by %s", path, holder(f))
			return nil, errors.Join(held, f.Close())
		default:
			<-time.After(lockPoll)
		}
	}
}

// sign writes who holds the lock. The text is a courtesy: that it cannot be
// written, as on a full disk, must not keep the journal closed.
func sign(f *os.File) {
	text := fmt.Appendf(nil, "%d\n", os.Getpid())
	if _, err := f.WriteAt(text, 0); err == nil {
		_ = f.Truncate(int64(len(text)))
	}
}

// holder names who has the lock, as far as the file tells.
func holder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, 0, 32), 32))
	if pid := strings.TrimSpace(string(text)); err == nil && pid != "" {
		return "process " + pid
	}
	return "another process"
}
