package logs

import (
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

// Watcher is told what comes and goes. It must return soon: workloads and their
// removal wait for it.
type Watcher interface {
	// Opened says that an attempt begins to write, or goes on.
	Opened(of Attempt)
	// Removing says that the output of an attempt goes after this.
	Removing(of Attempt)
	// RemovingAll says so of all that a sandbox wrote. Safe to repeat.
	RemovingAll(uid id.Sandbox)
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

// List lists the attempts of which output is kept, in no order.
func (s *Store) List() ([]Attempt, error) {
	uids, err := s.Sandboxes()
	if err != nil {
		return nil, err
	}
	var all []Attempt
	for _, uid := range uids {
		containers, err := os.ReadDir(s.Dir(uid))
		if err != nil {
			return nil, fmt.Errorf("list logs of sandbox %s: %w", uid, err)
		}
		for _, c := range containers {
			attempts, err := s.Attempts(uid, c.Name())
			if err != nil {
				return nil, err
			}
			for _, attempt := range attempts {
				all = append(all, Attempt{uid, c.Name(), attempt})
			}
		}
	}
	return all, nil
}

// AttemptDir is where the output of one attempt is kept. Who reads it may keep a
// file of its own there, whose name is not that of a stream, and which goes with
// the output.
func (s *Store) AttemptDir(of Attempt) string {
	return filepath.Join(s.Dir(of.UID), of.Container, strconv.FormatUint(of.Attempt, 10))
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
