package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Spare gives the socket at path a second name, from which Relink can bring back
// the first: both lead to the same listening socket for as long as either is
// there. What is at spare is replaced. Both must be on one file system.
func Spare(path, spare string) error {
	if err := os.Remove(spare); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give socket %s a second name: %w", path, err)
	}
	if err := os.Link(path, spare); err != nil {
		return fmt.Errorf("give socket %s a second name: %w", path, err)
	}
	return nil
}

// Relink has path lead again to the socket that spare is a name of, so that
// whoever serves it is reached as before and need not know. A socket that nobody
// serves and a dangling link are replaced, as by Listen; a socket with another
// server is Conflict and never touched, anything else at the path Invalid. To
// repeat it does nothing.
func Relink(path, spare string) error {
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return fmt.Errorf("mend socket %s: %w", path, err)
	}
	defer unlock()
	if SameSocket(path, spare) {
		return nil
	}
	if err := clearPath(path); err != nil {
		return err
	}
	if err := os.Link(spare, path); err != nil {
		return fmt.Errorf("mend socket %s: %w", path, err)
	}
	return nil
}

// SameSocket reports whether two paths are names of one file.
func SameSocket(a, b string) bool {
	first, err := os.Lstat(a)
	if err != nil {
		return false
	}
	second, err := os.Lstat(b)
	return err == nil && os.SameFile(first, second)
}
