package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// Adopt goes on with every stream that the process before left open: from the
// read end that was kept, else from the FIFO if it is still there; else it is
// closed. fresh says whether a container was made and not started, so that its
// shim may not have opened its ends yet. It must be called once, after New.
func (s *Store) Adopt(ctx context.Context, fresh func(uid id.Sandbox, container string, attempt uint64) bool) error {
	kept := s.fds.Take(storedPrefix)
	if _, err := s.allRemoved(); err != nil {
		return err
	}
	open, err := s.openStreams()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range open {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		st := s.stream(k)
		if err := st.adopt(kept, fresh(k.uid, k.container, k.attempt)); err != nil {
			errs = append(errs, fmt.Errorf("adopt output of container %s of sandbox %s: %w", k.container, k.uid, err))
		}
	}
	for name, f := range kept { // of streams that are closed or removed
		s.log.Debug("stored file of no stream dropped", logging.Component(name))
		errs = append(errs, f.Close(), s.fds.Remove(name))
	}
	return errors.Join(errs...)
}

// adopt goes on with a stream, and takes its own out of what was kept.
func (st *stream) adopt(kept map[string]*os.File, fresh bool) error {
	pipe := kept[st.key.stored()]
	delete(kept, st.key.stored())
	_, err := os.Stat(st.fifo)
	there := err == nil
	switch {
	case pipe != nil:
		var guard *os.File
		if fresh && there {
			if guard, err = os.OpenFile(st.fifo, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
				return errors.Join(err, pipe.Close())
			}
		}
		return st.start(pipe, guard, kept)
	case there:
		return st.reopen(fresh, kept)
	default:
		return st.end()
	}
}

// openStreams lists the streams that were not closed: those of which something is
// kept, and those whose FIFO is there although somebody took their output away. A
// workload that nobody reads from would wait for ever.
func (s *Store) openStreams() ([]key, error) {
	open, err := s.keptStreams()
	if err != nil {
		return nil, err
	}
	piped, err := s.pipedStreams()
	if err != nil {
		return nil, err
	}
	for _, k := range piped {
		if _, ended := s.stream(k).more(); !ended && !slices.Contains(open, k) {
			open = append(open, k)
		}
	}
	return open, nil
}

// pipedStreams lists the streams that have a FIFO.
func (s *Store) pipedStreams() ([]key, error) {
	uids, err := namespace.List(s.cfg.Run)
	if err != nil {
		return nil, err
	}
	var piped []key
	for _, uid := range uids {
		fifos, err := os.ReadDir(filepath.Join(s.cfg.Run, uid.Lower(), fifoFolder))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list fifos of sandbox %s: %w", uid, err)
		}
		for _, f := range fifos {
			if k, ok := parseFIFO(uid, f.Name()); ok {
				piped = append(piped, k)
			}
		}
	}
	return piped, nil
}

// parseFIFO undoes key.fifo.
func parseFIFO(uid id.Sandbox, file string) (key, bool) {
	stem, name, _ := strings.Cut(file, ".")
	dash := strings.LastIndexByte(stem, '-')
	if dash < 0 {
		return key{}, false
	}
	attempt, err := strconv.ParseUint(stem[dash+1:], 10, 64)
	k := key{uid: uid, container: stem[:dash], attempt: attempt, stderr: name == "stderr"}
	return k, err == nil && k.fifo() == file
}

// keptStreams lists the streams of which something is kept and that were not closed.
func (s *Store) keptStreams() ([]key, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	var open []key
	for _, of := range all {
		for _, st := range s.pair(of.UID, of.Container, of.Attempt) {
			if _, ended := st.more(); !ended {
				open = append(open, st.key)
			}
		}
	}
	return open, nil
}

// Sandboxes lists those that are here, or were not removed whole, of which output is kept.
func (s *Store) Sandboxes() ([]id.Sandbox, error) { return namespace.List(s.cfg.Dir) }

// prune removes the output of attempts long before this one, so that a workload
// that fails again and again does not fill the disk.
func (s *Store) prune(uid id.Sandbox, container string, attempt uint64) error {
	attempts, err := s.Attempts(uid, container)
	if err != nil {
		return err
	}
	for i, old := range attempts {
		if old >= attempt || len(attempts)-i < s.cfg.KeepAttempts {
			continue
		}
		pair := s.pair(uid, container, old)
		if pair[0].draining() || pair[1].draining() {
			continue
		}
		of := Attempt{uid, container, old}
		s.tell(func(w Watcher) { w.Removing(of) })
		for _, st := range pair {
			st.settle()
		}
		if err := os.RemoveAll(s.AttemptDir(of)); err != nil {
			return fmt.Errorf("remove old output of sandbox %s: %w", uid, err)
		}
		s.drop(pair[:])
	}
	return nil
}
