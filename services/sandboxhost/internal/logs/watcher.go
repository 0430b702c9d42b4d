package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"staddle.internal/kit/id"
)

// Attempt names the output of one life of a container.
type Attempt struct {
	UID       id.Sandbox
	Container string
	Attempt   uint64
}

// Watcher is told what comes and goes. It must return soon: workloads and full disks
// wait for it.
type Watcher interface {
	// Opened says that an attempt begins to write, or goes on.
	Opened(of Attempt)
	// Removing says that the output of an attempt goes after this.
	Removing(of Attempt)
	// RemovingAll says so of all that a removed sandbox wrote. Safe to repeat.
	RemovingAll(uid id.Sandbox)
	// Busy says whether it has still to do with the output of a removed sandbox, which
	// then stays longer than it would, unless there is no room.
	Busy(uid id.Sandbox) bool
}

// Watch has w told from now on. What was there before is in List.
func (s *Store) Watch(w Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, w)
}

func (s *Store) tell(each func(Watcher)) {
	s.mu.Lock()
	all := s.watchers[:len(s.watchers):len(s.watchers)]
	s.mu.Unlock()
	for _, w := range all {
		each(w)
	}
}

// List lists the attempts of sandboxes that are here of which output is kept, in no order.
func (s *Store) List() ([]Attempt, error) {
	uids, err := s.Sandboxes()
	if err != nil {
		return nil, err
	}
	return s.attemptsOf(uids)
}

// ListAll lists those of removed sandboxes as well.
func (s *Store) ListAll() ([]Attempt, error) {
	uids, err := s.Sandboxes()
	if err != nil {
		return nil, err
	}
	removed, err := s.allRemoved()
	if err != nil {
		return nil, err
	}
	for _, r := range removed {
		uids = append(uids, r.UID)
	}
	return s.attemptsOf(uids)
}

func (s *Store) attemptsOf(uids []id.Sandbox) ([]Attempt, error) {
	var all []Attempt
	for _, uid := range uids {
		containers, err := s.Containers(uid)
		if err != nil {
			return nil, err
		}
		for _, c := range containers {
			attempts, err := s.Attempts(uid, c)
			if err != nil {
				return nil, err
			}
			for _, attempt := range attempts {
				all = append(all, Attempt{uid, c, attempt})
			}
		}
	}
	return all, nil
}

// Containers lists the containers of a sandbox, here or removed, of which output is
// kept, by name. None is an answer, no error.
func (s *Store) Containers(uid id.Sandbox) ([]string, error) {
	var names []string
	err := s.within(uid, func(dir string) error {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list logs of sandbox %s: %w", uid, err)
	}
	return names, nil
}

// AttemptDir is where the output of one attempt is kept by now: the removal of the
// sandbox moves it. Who reads it may keep a file of its own there, whose name is not that
// of a stream, and which goes with the output.
func (s *Store) AttemptDir(of Attempt) string {
	var at string
	_ = s.within(of.UID, func(dir string) error {
		at = filepath.Join(dir, of.Container, strconv.FormatUint(of.Attempt, 10))
		return nil
	})
	return at
}

// Ended says whether nothing more will come of an attempt.
func (s *Store) Ended(of Attempt) bool {
	for _, st := range s.pair(of.UID, of.Container, of.Attempt) {
		if _, ended := st.more(); !ended {
			return false
		}
	}
	return true
}
