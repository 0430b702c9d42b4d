// Package wholefile replaces files as a whole: after a crash there is the old one, the
// new one, or none, and never half of one.
//
// It must never read what is there. It stands outside the trail; keys, certificates and
// what people configure are written with it.
package wholefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Replace puts what write gives in the place of a file, whose folder must exist, with
// that mode. Write may also give the new file, which nobody else sees yet, to another
// user. It is durable when Replace returns nil; else the old file is as it was, but for a
// failure to make the new one durable. Safe to repeat.
func Replace(file string, mode os.FileMode, write func(*os.File) error) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, ".new-*") // for nobody else until it is whole
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	// The mode first: who may give a file away may not change it after that.
	err = errors.Join(f.Chmod(mode), write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, errors.Join(err, os.Remove(f.Name())))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
