package volume

import (
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// lockLimit bounds the wait for another operation on the same volume. One that hangs
// in the kernel must not pile up all that come after it.
const lockLimit = 10 * time.Second

// lock makes operations on one volume come one at a time. Locks are few and
// small and are kept.
func (s *Store) lock(uid id.Disk) (unlock func(), err error) {
	s.mu.Lock()
	l := s.locks[uid]
	if l == nil {
		l = make(chan struct{}, 1)
		s.locks[uid] = l
	}
	s.mu.Unlock()
	limit := time.NewTimer(lockLimit)
	defer limit.Stop()
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-limit.C:
		return nil, fault.New(fault.Unavailable, "volume %s: another operation on it has not ended for %s", uid, lockLimit)
	}
}
