// Package logs owns what workloads write: one FIFO per stream while a container
// lives, and the segment files that keep its bytes.
//
// Bytes move from FIFO to file within the kernel, so that the death of this
// process neither cuts nor repeats any; the FIFO's read end is kept by whoever
// supervises us, so that a workload that ends meanwhile loses none. A byte has
// the offset that it had in its stream, for ever: segments are named by it, the
// oldest go when a stream exceeds its size, and what was thrown away because the
// disk was full is a gap in the offsets. Followers read the files and are woken;
// they never touch a FIFO.
//
// It must never make a change of state wait for output for more than DrainLimit,
// and never leave a pipe unread while it can read it. In the trail it stands
// beside create-container and delete-container.
package logs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// DrainLimit bounds how long the removal of a container waits for its output.
const DrainLimit = 2 * time.Second

const (
	// maxSegment is how long a segment grows. A quarter of the stream's limit, if
	// that is less, so that dropping one leaves most of the stream.
	maxSegment = 8 << 20
	minSegment = 16 << 10
	parts      = 4
)

// Position says where a reader is.
type Position struct {
	// UID, Container and Attempt say whose output it is.
	UID       id.Sandbox
	Container string
	Attempt   uint64
	// Stdout and Stderr choose the streams.
	Stdout, Stderr bool
	// StdoutOffset and StderrOffset are the first bytes that are wanted.
	StdoutOffset, StderrOffset int64
}

// Chunk is a piece of one stream.
type Chunk struct {
	// Stderr is true for a piece of standard error.
	Stderr bool
	// Offset of its first byte in the stream. A jump from the end of the chunk
	// before says that the bytes between are not kept.
	Offset int64
	// Data is at most MaxChunk long, and valid until emit returns.
	Data []byte
	// At is about when it was written. Zero if that was lost.
	At time.Time
}

// Config says where and how much is kept.
type Config struct {
	// Dir holds segments, below a folder per sandbox.
	Dir string
	// Run holds FIFOs, below the folder of each sandbox, and goes with the boot.
	Run string
	// MaxSize of one stream in bytes; the oldest segments go beyond it.
	MaxSize int64
	// KeepAttempts is of how many attempts of one container output is kept.
	KeepAttempts int
	// Removed holds the output of removed sandboxes, on the filesystem of Dir.
	Removed string
	// KeepRemoved is for how long that is kept. 0 means not: it goes once all of it was exported.
	KeepRemoved time.Duration
	// MaxRemoved bounds the bytes of it; what was removed first goes beyond it.
	MaxRemoved int64
}

// Deps are what the store works with.
type Deps struct {
	// Log gets what was lost.
	Log *slog.Logger
	// FDs keeps the pipes over our death.
	FDs Keeper
}

// Trouble is what a disk that takes no output does to a container.
type Trouble struct {
	// Of says whose output it is.
	Of Attempt
	// Reason is Waits or Dropped.
	Reason string
	// Message says it in words.
	Message string
}

const (
	// Waits is the reason when a container waits until its disk takes more.
	Waits = "OUTPUT_WAITS"
	// Dropped is the reason when what a container writes is thrown away.
	Dropped = "OUTPUT_DROPPED"
)

// Keeper keeps open files over the death of this process (kit/fdstore).
type Keeper interface {
	// Push keeps a copy of f; fault.Unavailable if nobody does.
	Push(name string, f *os.File) error
	// Remove lets go of it.
	Remove(name string) error
	// Take returns what was kept by the process before.
	Take(prefix string) map[string]*os.File
}

// Store is the output of all sandboxes of one node.
type Store struct {
	cfg     Config
	segment int64
	log     *slog.Logger
	fds     Keeper
	trouble atomic.Pointer[func(Trouble)]
	lost    atomic.Int64 // bytes that were thrown away

	mu       sync.Mutex
	streams  map[key]*stream
	watchers []Watcher
	wg       sync.WaitGroup // one per drain

	place   sync.RWMutex           // held while output changes its place. Behind mu
	removed map[id.Sandbox]Removed // nil until they were looked for
	giving  sync.Mutex             // one gives up what is kept of removed sandboxes. Before mu
	nudge   chan struct{}          // more is kept of removed sandboxes
}

// key names one stream.
type key struct {
	uid       id.Sandbox
	container string
	attempt   uint64
	stderr    bool
}

func (k key) name() string {
	if k.stderr {
		return "stderr"
	}
	return "stdout"
}

// stored is the name of the read end at the Keeper.
func (k key) stored() string {
	return fmt.Sprintf("%s%s-%s-%d-%s", storedPrefix, k.uid, k.container, k.attempt, k.name())
}

const storedPrefix = "log-"

// New returns the store. It opens nothing.
func New(cfg Config, deps Deps) *Store {
	return &Store{
		cfg: cfg, segment: max(minSegment, min(maxSegment, cfg.MaxSize/parts)),
		log: deps.Log, fds: deps.FDs, streams: map[key]*stream{}, nudge: make(chan struct{}, 1),
	}
}

// stream returns the one of that name, which may be at rest.
func (s *Store) stream(k key) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.streams[k]
	if !ok {
		st = newStream(k, s)
		s.streams[k] = st
	}
	return st
}

func (s *Store) pair(uid id.Sandbox, container string, attempt uint64) [2]*stream {
	return [2]*stream{
		s.stream(key{uid, container, attempt, false}),
		s.stream(key{uid, container, attempt, true}),
	}
}

// Dir is where the output of a sandbox that is here is kept.
func (s *Store) Dir(uid id.Sandbox) string { return filepath.Join(s.cfg.Dir, uid.Lower()) }

// below is the folder of a stream in that of its sandbox.
func (k key) below(dir string) string {
	return filepath.Join(dir, k.container, strconv.FormatUint(k.attempt, 10), k.name())
}

// fifoFolder is where the FIFOs of a sandbox are, in its own folder.
const fifoFolder = "io"

// fifo is the file name of the stream's FIFO.
func (k key) fifo() string { return fmt.Sprintf("%s-%d.%s", k.container, k.attempt, k.name()) }

func (s *Store) fifo(k key) string {
	return filepath.Join(s.cfg.Run, k.uid.Lower(), fifoFolder, k.fifo())
}

// Kept says whether anything that a sandbox wrote is kept.
func (s *Store) Kept(uid id.Sandbox) (bool, error) {
	_, err := os.Stat(s.Dir(uid))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for logs of sandbox %s: %w", uid, err)
	}
	return true, nil
}

// Remove puts aside all that a sandbox wrote, under the name that it had: Tend removes
// it when its time has come. Its readers go on to what was written last. Safe to repeat.
// Containers must be gone, else fault.Conflict.
func (s *Store) Remove(uid id.Sandbox, name Name) error {
	ours := s.of(uid)
	for _, st := range ours {
		if st.draining() {
			return fault.New(fault.Conflict, "remove logs of sandbox %s: container %s still writes", uid, st.key.container)
		}
	}
	for _, st := range ours {
		st.settle()
	}
	if err := s.putAside(uid, name); err != nil {
		return fmt.Errorf("remove logs of sandbox %s: %w", uid, err)
	}
	s.drop(ours)
	return nil
}

// drop forgets streams that nobody writes to any more.
func (s *Store) drop(gone []*stream) {
	s.mu.Lock()
	for _, st := range gone {
		delete(s.streams, st.key)
	}
	s.mu.Unlock()
	for _, st := range gone {
		st.remove()
	}
}

// of lists the streams of a sandbox.
func (s *Store) of(uid id.Sandbox) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ours []*stream
	for k, st := range s.streams {
		if k.uid == uid {
			ours = append(ours, st)
		}
	}
	return ours
}

// Close stops all drains without ending the streams: the next process goes on
// where they were.
func (s *Store) Close() error {
	s.mu.Lock()
	var errs []error
	for _, st := range s.streams {
		errs = append(errs, st.pause())
	}
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(errs...)
}

// Lost is how many bytes were thrown away since this process began, because a disk was full
// or slow.
func (s *Store) Lost() int64 { return s.lost.Load() }

// OnTrouble sets who is told when output begins to wait or to be lost, which may take its
// time: it holds up none that would not wait for the disk anyway.
func (s *Store) OnTrouble(tell func(Trouble)) { s.trouble.Store(&tell) }

func (st *stream) tell(reason, message string) {
	if tell := st.store.trouble.Load(); tell != nil {
		(*tell)(Trouble{Attempt{st.key.uid, st.key.container, st.key.attempt}, reason, message})
	}
}

func (s *Store) warn(message string, k key, attrs ...slog.Attr) {
	args := []any{k.uid.Attr(), logging.Component(k.container), logging.Attempt(int64(k.attempt)), slog.String("stream", k.name())}
	for _, a := range attrs {
		args = append(args, a)
	}
	s.log.Warn(message, args...) //nolint:sloglint // every caller passes a constant
}
