package pressure

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// window is over which the kernel counts stalls for a trigger. It is a multiple of two
// seconds, or the kernel asks for a right that we do without, and at most ten
// (Documentation/accounting/psi.rst).
const window = 10 * time.Second

// trigger has the kernel tell when all that runs has waited too long for something. One
// goroutine waits for that, until close.
type trigger struct {
	fired chan struct{} // has room for one
	close func()
}

// arm asks the kernel to tell when everything waited for so many percent of a window. It
// fails where the kernel does not count, or not for us.
func arm(path string, percent int) (*trigger, error) {
	// Not by os.OpenFile: it would wait for the file as for one that can be read.
	psi, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	asked := fmt.Sprintf("full %d %d\x00", (window * time.Duration(percent) / 100).Microseconds(), window.Microseconds())
	if _, err := unix.Write(psi, []byte(asked)); err != nil {
		return nil, errors.Join(fmt.Errorf("ask %s for %q: %w", path, asked, err), unix.Close(psi))
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make an event: %w", err), unix.Close(psi))
	}
	t := &trigger{fired: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(func() { t.wait(psi, end) }) // ends with close
	t.close = sync.OnceFunc(func() {
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // an event that is never full takes it
		wg.Wait()
		_ = errors.Join(unix.Close(psi), unix.Close(end)) // nothing was written to them that could be lost
	})
	return t, nil
}

// wait tells of stalls until the event comes, or the kernel takes the trigger away.
func (t *trigger) wait(psi, end int) {
	for {
		fds := []unix.PollFd{{Fd: int32(psi), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || fds[1].Revents != 0 || fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
			return
		case fds[0].Revents&unix.POLLPRI != 0:
			select {
			case t.fired <- struct{}{}:
			default: // it is not looked at yet
			}
		}
	}
}
