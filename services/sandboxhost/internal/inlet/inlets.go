package inlet

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Place says which one is meant.
type Place struct {
	// Container is its id, and Pipe the path of what its shim reads.
	Container, Pipe string
}

func (p Place) journal() string { return p.Pipe + Suffix }
func (p Place) stored() string  { return storedPrefix + p.Container }

// Suffix of a pipe's path makes that of its journal.
const Suffix = ".input"

// Keeper keeps open files over the death of this process (kit/fdstore).
type Keeper interface {
	// Push keeps a copy of f; fault.Unavailable if nobody does.
	Push(name string, f *os.File) error
	// Remove lets go of it.
	Remove(name string) error
	// Take returns what was kept by the process before.
	Take(prefix string) map[string]*os.File
}

// Inlets are those of all containers of one node.
type Inlets struct {
	fds Keeper

	mu    sync.Mutex          // guards what follows
	rests map[string]*os.File // reading ends of pipes of ours that nobody uses, by stored name
}

// New returns them.
func New(fds Keeper) *Inlets { return &Inlets{fds: fds, rests: map[string]*os.File{}} }

// Adopt takes over what the process before has left, and lists the containers of which that
// is. It must be called once, before Open.
func (s *Inlets) Adopt() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var containers []string
	for name, f := range s.fds.Take(storedPrefix) {
		s.rests[name] = f
		containers = append(containers, strings.TrimPrefix(name, storedPrefix))
	}
	return containers
}

// take returns the pipe of ours that was left for a container, nil if there is none.
func (s *Inlets) take(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.rests[name]
	delete(s.rests, name)
	return f
}

func (s *Inlets) leave(name string, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rests[name] = f
}

// Remove forgets the input of a container that is gone, or about to be made. Safe to repeat.
func (s *Inlets) Remove(place Place) error {
	var err error
	if rest := s.take(place.stored()); rest != nil {
		err = errors.Join(rest.Close(), s.fds.Remove(place.stored()))
	}
	if removeErr := os.Remove(place.journal()); !errors.Is(removeErr, os.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	if err != nil {
		return fmt.Errorf("remove standard input of container %s: %w", place.Container, err)
	}
	return nil
}

// Ended says whether the input of a container was ended.
func Ended(place Place) (bool, error) {
	j, err := readJournal(place.journal())
	return j.Ended, err
}
