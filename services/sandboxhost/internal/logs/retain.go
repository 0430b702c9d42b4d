package logs

import (
	"context"
	"fmt"
	"os"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// busyPause is how long what should go waits for those who are busy with it, before they
// are asked again.
const busyPause = time.Second

// untidyPause is how long it takes until output that could not be removed is tried again.
const untidyPause = time.Minute

// Tend removes what is kept of removed sandboxes when its time has come, until ctx ends.
func (s *Store) Tend(ctx context.Context) {
	for {
		next, err := s.tidy()
		if err != nil {
			s.log.Warn("output of removed sandboxes not removed", logging.Err(err), logging.RetryIn(untidyPause))
			next = untidyPause
		}
		var timer <-chan time.Time // nothing is kept: there is only more to wait for
		if next > 0 {
			timer = time.After(next)
		}
		select {
		case <-timer:
		case <-s.nudge:
		case <-ctx.Done():
			return
		}
	}
}

// tidy removes what has to go now, and says after how long there may be more of it; 0 if
// nothing is left.
func (s *Store) tidy() (time.Duration, error) {
	s.giving.Lock()
	defer s.giving.Unlock()
	all, err := s.allRemoved()
	if err != nil {
		return 0, err
	}
	gone, next := due(all, time.Now(), s.cfg.KeepRemoved, s.cfg.MaxRemoved, s.busy)
	for _, r := range gone {
		if err := s.forget(r); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// due decides which of the removed, in the order of their removal, go now: the first ones
// while all together are more than most bytes, and those whose time is over and with which
// nobody is busy. One that is more than that alone goes, and takes no other with it. next
// is after how long that may be different; 0 if none is left.
func due(all []Removed, now time.Time, keep time.Duration, most int64, busy func(id.Sandbox) bool) (gone []Removed, next time.Duration) {
	var total int64
	for _, r := range all {
		if r.size <= most {
			total += r.size
		}
	}
	for _, r := range all {
		left := keep - now.Sub(r.At)
		if r.size > most {
			gone = append(gone, r)
			continue
		}
		if total > most || left <= 0 && !busy(r.UID) {
			gone = append(gone, r)
			total -= r.size
			continue
		}
		if left <= 0 {
			left = busyPause
		}
		if next == 0 || left < next {
			next = left
		}
	}
	return gone, next
}

func (s *Store) busy(uid id.Sandbox) bool {
	busy := false
	s.tell(func(w Watcher) { busy = busy || w.Busy(uid) })
	return busy
}

// forget removes what is kept of a removed sandbox. Its readers come to an end.
func (s *Store) forget(r Removed) error {
	s.tell(func(w Watcher) { w.RemovingAll(r.UID) })
	if err := os.RemoveAll(r.dir); err != nil {
		return fmt.Errorf("remove output of removed sandbox %s: %w", r.UID, err)
	}
	s.place.Lock()
	delete(s.removed, r.UID)
	s.place.Unlock()
	s.drop(s.of(r.UID))
	return nil
}

// GiveUp makes room on a disk by what is kept of the sandbox that was removed first,
// and says whether there was one.
func (s *Store) GiveUp() bool {
	s.giving.Lock()
	defer s.giving.Unlock()
	all, err := s.allRemoved()
	if err == nil && len(all) == 0 {
		return false
	}
	if err == nil {
		err = s.forget(all[0])
	}
	if err != nil {
		s.log.Warn("output of removed sandboxes not given up", logging.Err(err))
		return false
	}
	s.log.Warn("output of a removed sandbox given up for room", all[0].UID.Attr())
	return true
}

// comesAgain removes what is kept of a removed sandbox whose uid is used once more, though
// nobody should: what it writes is output of one that is here.
func (s *Store) comesAgain(uid id.Sandbox) error {
	s.giving.Lock()
	defer s.giving.Unlock()
	s.place.RLock()
	r, ok := s.removed[uid]
	s.place.RUnlock()
	if !ok {
		return nil
	}
	return s.forget(r)
}
