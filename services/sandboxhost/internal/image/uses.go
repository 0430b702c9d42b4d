package image

import (
	"context"
	"sync"
	"time"
)

// uses knows which images were asked for since the start, which are being read, and
// which are being taken away, so that none is taken from under one who just found it.
type uses struct {
	mu      sync.Mutex
	at      map[string]time.Time     // by name of the record
	reading map[string]int           // exports
	leaving map[string]chan struct{} // closed when it is gone, or stays after all
}

func newUses() *uses {
	return &uses{at: map[string]time.Time{}, reading: map[string]int{}, leaving: map[string]chan struct{}{}}
}

// claim notes that the image is asked for now. It says again if it was being taken
// away: that is waited for, and then it has to be looked up anew.
func (u *uses) claim(ctx context.Context, name string, now time.Time) (again bool, err error) {
	u.mu.Lock()
	gone, leaving := u.leaving[name]
	if !leaving {
		u.at[name] = now
	}
	u.mu.Unlock()
	if !leaving {
		return false, nil
	}
	select {
	case <-gone:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// read keeps an image from being taken away until release is called; false if it is
// being taken away.
func (u *uses) read(name string) (release func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, leaving := u.leaving[name]; leaving {
		return nil, false
	}
	u.reading[name]++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.reading[name]--; u.reading[name] == 0 {
			delete(u.reading, name)
		}
	}), true
}

// leave begins to take an image away, unless it is being read, is being taken away, or
// was asked for at or after since, when those who need it were counted. Call done at
// the end, with whether it is gone.
func (u *uses) leave(name string, since time.Time) (done func(gone bool), why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.reading[name] > 0:
		return nil, "an export"
	case u.leaving[name] != nil:
		return nil, "another removal"
	case !u.at[name].Before(since):
		return nil, "a sandbox or a pull that has just asked for it"
	}
	end := make(chan struct{})
	u.leaving[name] = end
	return func(gone bool) {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.leaving, name)
		if gone {
			delete(u.at, name)
		}
		close(end)
	}, ""
}

// last is when the image was asked for last since the start; zero for never.
func (u *uses) last(name string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at[name]
}
