package journal

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"go.etcd.io/bbolt"
)

// Peek runs fn on the notes of a process that does not run, and changes nothing: a
// file that cannot be read stays where it is, for its owner to set aside. It returns
// fs.ErrNotExist if there is no such journal, fault.Conflict if somebody has it
// (after a short wait), or if it is of another kind or of a version that cannot be
// read, what is wrong with a damaged one, or the error of fn. Safe to repeat.
func Peek(o Options, fn func(tx Tx) error) error {
	if err := peek(o, fn); err != nil {
		return fmt.Errorf("read journal %s: %w", o.Path, err)
	}
	return nil
}

func peek(o Options, fn func(tx Tx) error) (err error) {
	if _, err := os.Lstat(o.Path); err != nil { // before the lock, which would leave a file where nothing is
		return err
	}
	lock, err := acquire(o.Path+".lock", lockWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := verify(o.Path); err != nil {
		return err
	}
	return guard(func() error {
		db, err := bbolt.Open(o.Path, 0, settings(true))
		if err != nil {
			return err
		}
		return errors.Join(db.View(func(btx *bbolt.Tx) error { return read(btx, o, fn) }), db.Close())
	})
}

// read runs fn on a journal of our kind and of a version that we can read.
func read(btx *bbolt.Tx, o Options, fn func(tx Tx) error) error {
	tx := Tx{btx, &state{}}
	version, err := strconv.Atoi(string(tx.Get(metaBucket, metaVersion)))
	if err != nil {
		return fmt.Errorf("read its version: %w", errors.Join(err, tx.st.damage))
	}
	if err := accept(o, string(tx.Get(metaBucket, metaKind)), version); err != nil {
		return err
	}
	return tx.run(fn)
}
