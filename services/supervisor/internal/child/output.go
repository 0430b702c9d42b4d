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
// part cut off is kept as one older file, of at most so many times that size.
const (
	maxOutput = 8 << 20
	maxOlder  = 8
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
	dir string

	mu  sync.RWMutex     // held while a file is trimmed, or read from
	cut map[string]int64 // by component: the place at which its file begins
}

func newOutputs(dir string) *outputs { return &outputs{dir: dir, cut: map[string]int64{}} }

// trim moves what is in the file to its older sibling if it is larger than
// limit, while a child may go on writing. The descriptor of the child stays good:
// the front of the file is collapsed, not the file replaced.
func (o *outputs) trim(name string, limit int64) error {
	path := outputPath(o.dir, name)
	if info, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	begin, err := o.beginLocked(name)
	if err != nil {
		return fmt.Errorf("trim output of %s: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("trim output: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		var moved int64
		moved, err = trim(f, info, olderPath(o.dir, name), maxOlder*limit)
		o.cut[name] = begin + moved
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("trim output of %s: %w", name, err)
	}
	return nil
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

// trim copies all whole blocks away, the last keep bytes of them, collapses them,
// and returns how many bytes the front of the file lost. Where the file system
// cannot do that the file is cut to nothing, and what is written between the end
// of the copy and the cut is lost. On a disk too full for the copy, what is cut off
// is lost: the file must not keep the disk full.
func trim(f *os.File, info os.FileInfo, older string, keep int64) (moved int64, err error) {
	block := int64(4096)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blksize > 0 {
		block = st.Blksize
	}
	whole := (info.Size() - 1) / block * block // never up to the very end: the kernel refuses that
	out, err := os.OpenFile(older, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return 0, err
	}
	from := max(0, whole-keep) // what was written since the last look may be much
	if _, err := copyIfRoom(out, io.NewSectionReader(f, from, whole-from)); err != nil {
		return 0, errors.Join(err, out.Close())
	}
	moved = whole
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, whole)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		var rest int64
		if rest, err = copyIfRoom(out, io.NewSectionReader(f, whole, 1<<62)); err == nil {
			moved += rest
			err = f.Truncate(0)
		}
	}
	if err != nil {
		moved = 0
	}
	return moved, errors.Join(err, out.Close())
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
