package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// trimOutput moves what is in the file to its older sibling if it is larger than
// limit, while a child may go on writing. The descriptor of the child stays good:
// the front of the file is collapsed, not the file replaced.
func trimOutput(dir, name string, limit int64) error {
	path := outputPath(dir, name)
	if info, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("trim output: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		err = trim(f, info, path+".1", maxOlder*limit)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("trim output of %s: %w", name, err)
	}
	return nil
}

// trim copies all whole blocks away, the last keep bytes of them, and collapses them. Where the file system
// cannot do that the file is cut to nothing, and what is written between the end
// of the copy and the cut is lost. On a disk too full for the copy, what is cut off
// is lost: the file must not keep the disk full.
func trim(f *os.File, info os.FileInfo, older string, keep int64) error {
	block := int64(4096)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blksize > 0 {
		block = st.Blksize
	}
	whole := (info.Size() - 1) / block * block // never up to the very end: the kernel refuses that
	out, err := os.OpenFile(older, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	from := max(0, whole-keep) // what was written since the last look may be much
	if err := copyIfRoom(out, io.NewSectionReader(f, from, whole-from)); err != nil {
		return errors.Join(err, out.Close())
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, whole)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		if err = copyIfRoom(out, io.NewSectionReader(f, whole, 1<<62)); err == nil {
			err = f.Truncate(0)
		}
	}
	return errors.Join(err, out.Close())
}

// copyIfRoom appends what r has to out, and empties out if the disk has no room.
func copyIfRoom(out *os.File, r io.Reader) error {
	_, err := io.Copy(out, r)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		_, seekErr := out.Seek(0, io.SeekStart)
		return errors.Join(out.Truncate(0), seekErr)
	}
	return err
}
