package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"staddle.internal/kit/logging"
)

// killed is the exit code of a process that SIGKILL ended.
const killed = 137

// killSettle is how long the main process may take to be gone after the kernel has
// counted that it ends it for memory. One that is there for longer has lived through
// it. On a machine whose processors are all taken many times over more than two seconds
// were seen.
const killSettle = 5 * time.Second

// besideKillsFolder is the folder, in that of a sandbox, of the counts of kills for memory
// beside the main processes: a file for each container.
const besideKillsFolder = "killed"

// kills is what was seen of the kernel's count of the processes of a container that
// it ended for memory.
type kills struct {
	count  uint64
	since  time.Time // when count was first seen
	before uint64    // what the container had lived through then
}

// saw takes in the count at a time.
func (k kills) saw(count uint64, at time.Time) kills {
	if count <= k.count {
		return k
	}
	return kills{count: count, since: at, before: k.lived(at)}
}

// lived is how many kills a container that is there at a time has lived through.
func (k kills) lived(at time.Time) uint64 {
	if at.Sub(k.since) > killSettle {
		return k.count
	}
	return k.before
}

// ended says whether a kill for memory was the end of the main process: SIGKILL
// ended it, and more are counted than it had lived through. So a SIGKILL of somebody
// else after a child was ended for memory is not the kernel's; of what happened while
// nobody looked the last is.
func (k kills) ended(code uint32, count uint64, at time.Time) bool {
	return code == killed && count > k.lived(at)
}

// beside takes in that one of those counted was not the main process.
func (k kills) beside() kills {
	k.before = min(k.before+1, k.count)
	return k
}

// killedBeside says whether the kernel ended a process beside the main one of a container
// for memory: SIGKILL ended it, and more are counted than before it began. A SIGKILL of
// somebody else while the kernel ends another process is taken for the kernel's.
func (e *Engine) killedBeside(containerID string, code uint32, before uint64) bool {
	known := e.known(containerID)
	if code != killed || known == nil {
		return false
	}
	count, err := e.oomKillsRunning(known)
	if err != nil {
		e.log.Warn("kills for memory not counted", logging.Component(containerID), logging.Err(err))
	}
	if err != nil || count <= before {
		return false
	}
	e.mu.Lock()
	known.kills = known.kills.beside()
	e.mu.Unlock()
	if err := e.noteKillBeside(known); err != nil {
		e.log.Warn("kill for memory not noted", logging.Component(containerID), logging.Err(err))
	}
	e.hints.one(known.uid)
	return true
}

// besideKillsFile has a byte for each kill for memory of a process beside the main one of a
// container, so that it is never found half written.
func (e *Engine) besideKillsFile(known *container) string {
	return filepath.Join(e.pins.Dir(known.uid), besideKillsFolder, known.id)
}

// noteKillBeside counts one more of them.
func (e *Engine) noteKillBeside(known *container) (err error) {
	path := e.besideKillsFile(known)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write([]byte{'\n'})
	return err
}

// besideKills is how many of them there were.
func (e *Engine) besideKills(known *container) (uint64, error) {
	info, err := os.Stat(e.besideKillsFile(known))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, unavailable("count its kills for memory", err)
	}
	return uint64(info.Size()), nil
}

// killsBefore is how many are counted when such a process begins.
func (e *Engine) killsBefore(containerID string) (uint64, error) {
	known := e.known(containerID)
	if known == nil {
		return 0, nil
	}
	return e.oomKillsRunning(known)
}

// oomKills is how many processes of a container were ended for memory. Its control
// group, which counts, lasts until the task is deleted.
func (e *Engine) oomKills(known *container) (uint64, error) {
	if known.group == "" {
		return 0, nil
	}
	return e.cgroups.OOMKills(known.group)
}

// oomKillsRunning is the same of one that runs, and remembers it.
func (e *Engine) oomKillsRunning(known *container) (uint64, error) {
	count, err := e.oomKills(known)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	known.kills = known.kills.saw(count, now())
	return count, nil
}
