// Package fdstore owns both ends of the protocol by which a process keeps open
// files over its own restart: systemd's LISTEN_FDS and NOTIFY_SOCKET.
//
// Store is the end of the process: it takes what was passed to it, hands over
// files that must outlive it, and says when it is ready. It works the same under
// systemd. Manager is the end of whoever supervises: it keeps the files by owner.
//
// It must never read from a file that it keeps; the bytes belong to the process
// that comes next. In the trail the Store is opened in the frame of each main, and
// the Manager by the supervisor.
package fdstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// The variables of the protocol.
const (
	EnvFDs     = "LISTEN_FDS"
	EnvNames   = "LISTEN_FDNAMES"
	EnvPID     = "LISTEN_PID"
	EnvNotify  = "NOTIFY_SOCKET"
	FirstFD    = 3   // number of the first file that is passed
	MaxName    = 255 // characters of a name
	maxPassed  = 1 << 16
	namelessFD = "stored" // what the protocol calls a file without a name
)

// Store is this process's side.
type Store struct {
	socket string // where the manager listens, or ""

	mu       sync.Mutex // guards the two below
	files    []passed   // not yet taken, in the order in which they came
	problems []error
}

type passed struct {
	name string
	file *os.File
}

var inherited = sync.OnceValue(New)

// Inherited returns what was passed to this process, read from the environment
// at the first call and the same afterwards.
func Inherited() *Store { return inherited() }

// New reads the variables, clears them so that no child takes them for its own,
// and claims the files. Inherited calls it; a second call finds nothing. What was
// passed wrongly is left out and told by Err.
func New() *Store {
	s := &Store{socket: os.Getenv(EnvNotify)}
	count, names, err := passedTo(os.Getpid(), os.Getenv)
	s.fail(err)
	for _, key := range []string{EnvFDs, EnvNames, EnvPID, "LISTEN_PIDFDID", EnvNotify} {
		s.fail(os.Unsetenv(key))
	}
	for i := range count {
		s.claim(FirstFD+i, names[i])
	}
	return s
}

// passedTo says how many files the environment passes to process pid, and their
// names. Without LISTEN_PID they are ours: a parent that cannot know the pid
// beforehand leaves it out.
func passedTo(pid int, getenv func(string) string) (int, []string, error) {
	if getenv(EnvFDs) == "" {
		return 0, nil, nil
	}
	if text := getenv(EnvPID); text != "" && text != strconv.Itoa(pid) {
		return 0, nil, nil
	}
	count, err := strconv.Atoi(getenv(EnvFDs))
	if err != nil || count < 0 || count > maxPassed {
		return 0, nil, fault.New(fault.Invalid, "read %s: %q is no number of files", EnvFDs, getenv(EnvFDs))
	}
	names := slices.Repeat([]string{namelessFD}, count)
	if text := getenv(EnvNames); text != "" {
		given := strings.Split(text, ":")
		if len(given) != count {
			return 0, nil, fault.New(fault.Invalid, "read %s: %d names for %d files", EnvNames, len(given), count)
		}
		copy(names, given)
	}
	return count, names, nil
}

// claim makes one number a file of ours. Its mode is left as it is: what waits
// for a file that is shared with others depends on it.
func (s *Store) claim(fd int, name string) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		s.fail(fmt.Errorf("take passed file %s as %d: %w", name, fd, err))
		return
	}
	unix.CloseOnExec(fd)
	s.files = append(s.files, passed{name, os.NewFile(uintptr(fd), name)})
}

// Err returns all that was wrong with what was passed, so far.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.problems...)
}

// Names lists the files not yet taken.
func (s *Store) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, p := range s.files {
		names = append(names, p.name)
	}
	return names
}

// Listener takes the passed socket of that name. It returns false if there is
// none, or none that can be listened on, which Err then tells.
func (s *Store) Listener(name string) (net.Listener, bool) {
	f := s.take(name)
	if f == nil {
		return nil, false
	}
	l, err := net.FileListener(f) // on a copy
	if err := errors.Join(err, f.Close()); err != nil {
		s.fail(fmt.Errorf("listen on passed file %s: %w", name, err))
		return nil, false
	}
	return l, true
}

// Take takes all files whose name begins with prefix; they belong to the caller
// now. Of two with one name the later is the newer and is kept.
func (s *Store) Take(prefix string) map[string]*os.File {
	taken := make(map[string]*os.File)
	for _, name := range s.Names() {
		if strings.HasPrefix(name, prefix) {
			if f := s.take(name); f != nil {
				taken[name] = f
			}
		}
	}
	return taken
}

// take returns the newest file of that name, closes the older, and forgets both.
func (s *Store) take(name string) *os.File {
	s.mu.Lock()
	var newest *os.File
	var older []*os.File
	s.files = slices.DeleteFunc(s.files, func(p passed) bool {
		if p.name != name {
			return false
		}
		if newest != nil {
			older = append(older, newest)
		}
		newest = p.file
		return true
	})
	s.mu.Unlock()
	for _, f := range older {
		s.fail(f.Close())
	}
	return newest
}

func (s *Store) fail(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, err)
}

// CheckName returns nil if name may be given to a file: 1 to 255 printable ASCII
// characters without a colon. Otherwise it returns fault.Invalid.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName {
		return fault.New(fault.Invalid, "name of a stored file: has %d characters, write 1 to %d", len(name), MaxName)
	}
	for _, r := range name {
		if r < ' ' || r > '~' || r == ':' {
			return fault.New(fault.Invalid, "name of a stored file: %.40q contains %q", name, r)
		}
	}
	return nil
}
