package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxOutput is the size above which the file of a component's output is cut; the
// part cut off is kept as one older file, of at most so many times that size. It is
// cut as it is written (watch), so that there is more only if that much is written
// faster than it can be copied, and then the rest is dropped: a copy of everything
// would never catch up.
const (
	maxOutput = 8 << 20
	maxOlder  = 2
)

const (
	// torrent is the part of the bound that a file grows by between two looks when
	// it grows fast.
	torrent = 8
	// catchUp is how often a copy goes after what is written meanwhile.
	catchUp = 2
)

// openOutput opens the file that a child writes to by itself: so the last words
// of a process are kept also when the supervisor is dead, which a pipe to us would
// lose.
func openOutput(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(outputPath(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	return f, nil
}

func outputPath(dir, name string) string { return filepath.Join(dir, name+".log") }

// outputs are the files of output of all components. One goroutine trims, many read
// at the same time; places in an output stay the same when its front moves to the
// older file. Safe for concurrent use.
type outputs struct {
	dir  string
	hold func(name string) (release func()) // stops who writes, for a moment

	mu  sync.RWMutex     // held while a file is trimmed, or read from
	cut map[string]int64 // by component: the place at which its file begins
	gap map[string]int64 // by component: how much before that place is not kept, after the older file

	seen map[string]int64 // by component: size at the last look; the trimming goroutine's alone
}

func newOutputs(dir string) *outputs {
	return &outputs{dir: dir, hold: func(string) func() { return func() {} }, cut: map[string]int64{}, gap: map[string]int64{}, seen: map[string]int64{}}
}

// trim moves what is in the file to its older sibling if it is larger than
// limit, while a child may go on writing. The descriptor of the child stays good:
// the front of the file is collapsed, not the file replaced. It returns how much of
// the front was too much to be kept.
func (o *outputs) trim(name string, limit int64) (dropped int64, err error) {
	path := outputPath(o.dir, name)
	before, known := o.seen[name]
	looked, err := os.Lstat(path)
	if err == nil {
		o.seen[name] = looked.Size()
	}
	if errors.Is(err, os.ErrNotExist) || err == nil && looked.Size() <= limit {
		return 0, nil
	}
	fast := known && err == nil && looked.Size()-before > limit/torrent
	if fast { // as a full pipe would: whoever writes so much would fill the disk while it is copied
		defer o.hold(name)()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	begin, err := o.beginLocked(name)
	if err != nil {
		return 0, fmt.Errorf("trim output of %s: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, fmt.Errorf("trim output: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		var c cut
		c, err = trim(f, info, olderPath(o.dir, name), maxOlder*limit, fast)
		o.cut[name], o.gap[name] = begin+c.moved, c.gap
		dropped = c.dropped + c.gap
	}
	o.seen[name] = 0 // about: what is left is less than a block
	if err := errors.Join(err, f.Close()); err != nil {
		return dropped, fmt.Errorf("trim output of %s: %w", name, err)
	}
	return dropped, nil
}

// beginLocked is the place at which the file begins; the older one ends there. The
// oldest byte that is kept when it is first asked has place 0.
func (o *outputs) beginLocked(name string) (int64, error) {
	if at, known := o.cut[name]; known {
		return at, nil
	}
	info, err := os.Lstat(olderPath(o.dir, name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		o.cut[name] = 0
	case err != nil:
		return 0, fmt.Errorf("look at older output: %w", err)
	default:
		o.cut[name] = info.Size()
	}
	return o.cut[name], nil
}

func olderPath(dir, name string) string { return outputPath(dir, name) + ".1" }

// cut is what became of the front of a file: so many bytes are not in it any more,
// of which the first were dropped, and the last, the gap, as well.
type cut struct{ moved, dropped, gap int64 }

// trim sets the front of a file aside, the last keep bytes of it, and says what it
// lost. On a disk too full for the copy, what is cut off is lost: the file must not
// keep the disk full. A file that grows fast, or has outgrown what is kept, is
// emptied: to collapse it is to wait for the disk, while it grows.
func trim(f *os.File, info os.FileInfo, older string, keep int64, fast bool) (c cut, err error) {
	out, err := os.OpenFile(older, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return cut{}, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if fast || info.Size() > keep+keep/maxOlder {
		return empty(f, out, info.Size(), keep)
	}
	c, err = collapse(f, out, info, keep)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // a file system that cannot
		return empty(f, out, info.Size(), keep)
	}
	return c, err
}

// collapse sets all whole blocks aside and takes them out of the file, which loses
// nothing that is written meanwhile.
func collapse(f, out *os.File, info os.FileInfo, keep int64) (cut, error) {
	block := int64(4096)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blksize > 0 {
		block = st.Blksize
	}
	whole := (info.Size() - 1) / block * block // never up to the very end: the kernel refuses that
	from := max(0, whole-keep)
	if _, err := copyIfRoom(out, io.NewSectionReader(f, from, whole-from)); err != nil {
		return cut{}, err
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, whole); err != nil {
		return cut{}, err
	}
	return cut{moved: whole, dropped: from}, nil
}

// empty sets the last bytes aside and empties the file. It copies what is written
// meanwhile as well, until it catches up or gives up: the rest is the gap then. Only what
// comes in the moment between its last look and the cut is lost without a word.
func empty(f, out *os.File, size, keep int64) (cut, error) {
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return cut{}, err
	}
	if err := out.Truncate(0); err != nil {
		return cut{}, err
	}
	from := max(0, size-keep)
	for at, tries := from, 0; ; tries++ {
		if _, err := copyIfRoom(out, io.NewSectionReader(f, at, size-at)); err != nil {
			return cut{}, err
		}
		info, err := f.Stat()
		if err != nil {
			return cut{}, err
		}
		if now := info.Size(); now == size || tries == catchUp {
			return cut{moved: now, dropped: from, gap: now - size}, f.Truncate(0)
		}
		at, size = size, min(info.Size(), size+keep/maxOlder)
	}
}

// copyIfRoom appends what r has to out, and empties out if the disk has no room.
func copyIfRoom(out *os.File, r io.Reader) (int64, error) {
	n, err := io.Copy(out, r)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		_, seekErr := out.Seek(0, io.SeekStart)
		return n, errors.Join(out.Truncate(0), seekErr)
	}
	return n, err
}
