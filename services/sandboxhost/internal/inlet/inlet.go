// Package inlet owns the way of input into the main process of a container: the pipe that its
// shim reads, and the count of what went in.
//
// A byte that a caller sends goes in exactly once, over the death of this process at any
// moment. It is put into a pipe of ours first, which whoever supervises us keeps, and the
// kernel moves it from there into the container's, so that it is always in one of the two and never
// in both. A small journal says which input the bytes belong to, and whether those in our
// pipe are counted yet. The next process reads both, and tells the caller where to go on.
//
// It must never end the input of a container that nobody has ended: the shim
// holds both ends of its pipe. In the trail it stands beside create-container.
package inlet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
)

// storedPrefix begins the names of our pipes at the Keeper.
const storedPrefix = "stdin-"

// readerLimit is how long the shim has to open its end: it does that in passing, in a
// goroutine of its own, when a container was just made.
const readerLimit = time.Second

// readerAgain is the wait between looks.
var readerAgain = backoff.Policy{Initial: 10 * time.Millisecond, Cap: 100 * time.Millisecond}

// Input says what goes in.
type Input struct {
	// ID is chosen by the caller. Empty for what cannot be resumed.
	ID string
	// Resumed is true for the rest of an input that was begun.
	Resumed bool
}

// Inlet is one that is open. Write and End are for one goroutine, the rest for any.
type Inlet struct {
	all   *Inlets
	place Place
	pipe  *os.File // writing end of the container's; nil when nobody read at the opening

	closed atomic.Bool

	mu      sync.Mutex // guards what follows
	journal journal
	stage   *stage // ours
	deaf    bool   // nobody reads any more
}

// Open begins an input, or goes on with it. There is one open at a time for a container;
// the caller sees to that. What nobody reads any more is taken and dropped. It
// returns Conflict with reason STDIN_ENDED when the container's input was ended, and with
// reason INPUT_LOST when what is resumed was not the last input, or nobody
// kept what was on its way; os.ErrNotExist when the container is gone.
func (s *Inlets) Open(ctx context.Context, place Place, in Input) (*Inlet, error) {
	i := &Inlet{all: s, place: place}
	err := i.open(ctx, in)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open standard input of container %s: %w", place.Container, err), i.Close())
	}
	return i, nil
}

func (i *Inlet) open(ctx context.Context, in Input) error {
	if _, err := os.Lstat(i.place.Pipe); err != nil {
		return err
	}
	var err error
	if i.journal, err = readJournal(i.place.journal()); err != nil {
		return err
	}
	rest := i.all.take(i.place.stored())
	kept := rest != nil
	if i.stage, err = newStage(rest); err != nil {
		return err
	}
	waiting, err := i.stage.filled()
	if err != nil {
		return err
	}
	if i.journal, err = decide(i.journal, waiting, kept, in); err != nil {
		return err
	}
	if !kept {
		if err := i.all.fds.Push(i.place.stored(), i.stage.read); err != nil && !errors.Is(err, fault.Unavailable) {
			return err
		}
	}
	if err := i.journal.write(i.place.journal()); err != nil {
		return err
	}
	if i.journal.Ended {
		return nil
	}
	i.pipe, err = openPipe(ctx, i.place.Pipe)
	i.deaf = i.pipe == nil
	return err
}

// decide says how an input begins, given what the journal says and how many bytes wait in a
// pipe of ours, which was kept or is new.
func decide(j journal, waiting int, kept bool, in Input) (journal, error) {
	if !j.Moving { // what is there was not counted
		j.Received += uint64(waiting)
	}
	lost := j.Moving && !kept
	switch same := in.ID != "" && in.ID == j.ID; {
	case in.Resumed && !same:
		return j, fault.WithReason(fault.New(fault.Conflict, "somebody else has sent input since"), "INPUT_LOST")
	case same && lost:
		return j, fault.WithReason(fault.New(fault.Conflict, "nobody can tell which of its bytes went in: nothing keeps them over a restart of the host"), "INPUT_LOST")
	case !same && j.Ended:
		return j, fault.WithReason(fault.New(fault.Conflict, "it was ended for good"), "STDIN_ENDED")
	case !same:
		j = journal{ID: in.ID}
	}
	j.Moving = waiting > 0
	return j, nil
}

// openPipe opens the writing end of what a shim reads, nil if nobody does.
func openPipe(ctx context.Context, path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, readerLimit)
	defer cancel()
	for try := 1; ; try++ {
		f, err := os.OpenFile(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, os.ErrNotExist): // as its container is
			return nil, nil
		case !errors.Is(err, unix.ENXIO):
			return nil, err
		}
		if backoff.Wait(ctx, readerAgain.Delay(try, rand.Float64())) != nil {
			return nil, nil
		}
	}
}

// Received is how many bytes of the input were taken since it began. Those need not be
// sent again, whatever becomes of us.
func (i *Inlet) Received() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.journal.Received
}

// Ended says whether the input was ended.
func (i *Inlet) Ended() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.journal.Ended
}

// Write takes bytes, and waits while the container does not read. What nobody reads any more is
// dropped. After an error the input has to be opened again.
func (i *Inlet) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.settle(); err != nil {
		return 0, err
	}
	for done := 0; done < len(b); {
		n, err := i.stage.fill(b[done:])
		if err != nil {
			return done, err
		}
		done += n
		i.journal.Received += uint64(n)
		if err := errors.Join(i.note(true), i.settle()); err != nil {
			return done, err
		}
	}
	return len(b), nil
}

// Settle moves on what an earlier process has left on its way, and waits while the container does
// not read.
func (i *Inlet) Settle() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.settle()
}

// settle moves on what is in our pipe. The caller holds mu.
func (i *Inlet) settle() error {
	if !i.journal.Moving {
		return nil
	}
	for {
		waiting, err := i.stage.filled()
		if err != nil {
			return err
		}
		switch {
		case i.closed.Load():
			return os.ErrClosed
		case waiting == 0:
			return i.note(false)
		case i.deaf:
			err = i.stage.drop(waiting)
		default:
			err = i.stage.move(i.pipe, waiting)
		}
		if errors.Is(err, unix.EPIPE) {
			i.deaf, err = true, nil
		}
		if err != nil {
			return err
		}
	}
}

// note writes down what was counted. The caller holds mu.
func (i *Inlet) note(moving bool) error {
	i.journal.Moving = moving
	return i.journal.write(i.place.journal())
}

// End ends the input for good, behind all that was written. It is done when the shim has let go
// of its end too, which the caller asks for. Safe to repeat.
func (i *Inlet) End() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.journal.Ended {
		return nil
	}
	if err := i.settle(); err != nil {
		return err
	}
	i.journal.Ended = true
	return errors.Join(i.note(false), closeFile(i.pipe))
}

// Close lets go of it; the container's input stays open. What is on its way stays where it is
// kept, for whoever opens it next. A Write that waits fails. Safe to repeat.
func (i *Inlet) Close() error {
	i.closed.Store(true)
	err := closeFile(i.pipe) // wakes a Write
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stage == nil {
		return err
	}
	waiting, fillErr := i.stage.filled()
	err = errors.Join(err, fillErr, i.stage.write.Close())
	if _, statErr := os.Lstat(i.place.Pipe); waiting > 0 && !errors.Is(statErr, os.ErrNotExist) {
		i.all.leave(i.place.stored(), i.stage.read)
	} else {
		err = errors.Join(err, i.stage.read.Close(), i.all.fds.Remove(i.place.stored()))
	}
	i.stage = nil
	return err
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
