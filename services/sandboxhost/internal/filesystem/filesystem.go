// Package filesystem says how full a filesystem is, in bytes and in inodes, as users
// other than root find it, and says so to people. It must never change one.
package filesystem

import (
	"fmt"
	"syscall"
)

// Space is how full a filesystem is.
type Space struct {
	// Path that it was asked for by.
	Path string
	// Size and Free in bytes, without what is reserved for root.
	Size, Free int64
	// Inodes and InodesFree; 0 where the filesystem does not count them.
	Inodes, InodesFree int64
	// Device tells filesystems apart.
	Device uint64
}

// Measure asks the kernel about the filesystem of a path. It reads no disk.
func Measure(path string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return Space{}, fmt.Errorf("measure filesystem of %s: %w", path, err)
	}
	var file syscall.Stat_t
	if err := syscall.Stat(path, &file); err != nil {
		return Space{}, fmt.Errorf("measure filesystem of %s: %w", path, err)
	}
	free := int64(st.Bavail) * st.Bsize
	return Space{
		Path: path, Free: free, Size: int64(st.Blocks-st.Bfree)*st.Bsize + free,
		Inodes: int64(st.Files), InodesFree: int64(st.Ffree), Device: file.Dev,
	}, nil
}

// UsedPercent is the larger of the shares of bytes and of inodes in use, rounded down.
func (s Space) UsedPercent() int {
	return max(Percent(s.Size-s.Free, s.Size), Percent(s.Inodes-s.InodesFree, s.Inodes))
}

// Percent is a share, rounded down; of nothing it is 0.
func Percent(part, whole int64) int {
	if whole <= 0 {
		return 0
	}
	return int(float64(part) / float64(whole) * 100)
}

// String is the figures, for people.
func (s Space) String() string {
	text := fmt.Sprintf("%s of %s free on the filesystem of %s", Bytes(s.Free), Bytes(s.Size), s.Path)
	if s.Inodes > 0 {
		text += fmt.Sprintf(", %d of %d inodes", s.InodesFree, s.Inodes)
	}
	return text
}

// Bytes is a number of bytes for people, with one decimal.
func Bytes(n int64) string {
	const unit, names = 1024, "KMGTPE"
	if n < unit {
		return fmt.Sprintf("%d B", max(n, 0))
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit && i < len(names)-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, names[i])
}
