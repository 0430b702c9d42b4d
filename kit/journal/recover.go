package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"staddle.internal/kit/fault"
)

// metaBucket holds what the file says about itself.
const metaBucket = "\x00journal"

const (
	metaKind    = "kind"
	metaVersion = "version"
)

// errDamaged is in the chain of whatever means that the file, or a part, cannot
// be what was written.
var errDamaged = errors.New("damaged")

// recoverFile opens the file of the journal, sets an unreadable one aside, and
// makes a new one where there is none. The caller holds the lock.
func recoverFile(o Options) (*bbolt.DB, Recovery, error) {
	var rec Recovery
	db, err := openExisting(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		rec.Fresh = true
	case errors.Is(err, errDamaged):
		rec.Fresh, rec.Damage = true, err.Error()
		if rec.SetAside, err = setAside(o.Path); err != nil {
			return nil, rec, err
		}
		o.Log.Warn("journal set aside", "path", o.Path, "set_aside", rec.SetAside, "reason", rec.Damage)
	case err != nil:
		return nil, rec, err
	}
	if rec.Fresh {
		if db, err = create(o); err != nil {
			return nil, rec, err
		}
	}
	found, err := claim(db, o)
	if err != nil {
		return nil, rec, errors.Join(err, db.Close())
	}
	if !rec.Fresh {
		rec.Version = found
	}
	return db, rec, nil
}

// settings of bbolt. The list of free pages is stored, and read in the goroutine
// that opens: without it bbolt walks the file in a goroutine of its own, where a
// page that is not what it should be ends the process.
func settings(readOnly bool) *bbolt.Options {
	return &bbolt.Options{
		ReadOnly:        readOnly,
		PreLoadFreelist: true,
		Timeout:         lockWait,
		FreelistType:    bbolt.FreelistMapType,
		NoStatistics:    true,
	}
}

// verify reads the whole file without changing it. It returns fs.ErrNotExist,
// errDamaged, or that the question itself failed.
func verify(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.Invalid, "%s is no regular file, move it away", path)
	}
	if info.Size() == 0 {
		return fmt.Errorf("file is empty: %w", errDamaged)
	}
	return damageOf(guardAll(func() error {
		db, err := bbolt.Open(path, 0, settings(true))
		if err != nil {
			return err
		}
		return errors.Join(db.View(func(tx *bbolt.Tx) error { return inspect(tx, info.Size()) }), db.Close())
	}))
}

// inspect reads every note, and then lets bbolt check how its pages hang together.
// The order matters: that check runs in a goroutine of its own, and must meet no
// page that cannot be read.
func inspect(tx *bbolt.Tx, size int64) error {
	if tx.Size() > size {
		return fmt.Errorf("file has %d bytes of %d: %w", size, tx.Size(), errDamaged)
	}
	if tx.Bucket([]byte(metaBucket)) == nil {
		return fmt.Errorf("file has no kind and version: %w", errDamaged)
	}
	err := tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(k, stored []byte) error {
			_, err := unseal(string(name), string(k), stored)
			return err
		})
	})
	if err != nil {
		return err
	}
	for e := range tx.Check() { // to the end, else its goroutine stays
		if err == nil {
			err = fmt.Errorf("%w: %w", e, errDamaged)
		}
	}
	return err
}

// damageOf tells damage from a failed question: what the system said about the
// disk may be better later, while what bbolt said about the content will not.
func damageOf(err error) error {
	_, system := errors.AsType[syscall.Errno](err)
	if err == nil || system || errors.Is(err, berrors.ErrTimeout) || errors.Is(err, errDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", err, errDamaged)
}

// openExisting opens a file that verify could read.
func openExisting(path string) (*bbolt.DB, error) {
	if err := verify(path); err != nil {
		return nil, err
	}
	return open(path)
}

// open opens a file for writing, and makes it if it is not there.
func open(path string) (db *bbolt.DB, err error) {
	err = guardAll(func() error {
		db, err = bbolt.Open(path, 0o600, settings(false))
		return err
	})
	return db, err
}

// create makes an empty journal under another name and moves it to its place, so
// that a half-made one is never found there.
func create(o Options) (*bbolt.DB, error) {
	half := o.Path + ".new"
	if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	db, err := open(half)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return stamp(tx, o) })
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(half, o.Path); err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(o.Path)); err != nil {
		return nil, err
	}
	return open(o.Path)
}

// stamp writes what the file says about itself.
func stamp(tx *bbolt.Tx, o Options) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
	if err != nil {
		return err
	}
	version := []byte(strconv.Itoa(o.Version))
	return errors.Join(
		b.Put([]byte(metaKind), seal(metaBucket, metaKind, []byte(o.Kind))),
		b.Put([]byte(metaVersion), seal(metaBucket, metaVersion, version)))
}

// claim checks that the file is of our kind and of a version that we can read,
// makes it one of our version, and returns the one that it had.
func claim(db *bbolt.DB, o Options) (found int, err error) {
	err = db.View(func(btx *bbolt.Tx) (err error) {
		tx := Tx{btx, &state{}}
		kind := string(tx.Get(metaBucket, metaKind))
		if found, err = strconv.Atoi(string(tx.Get(metaBucket, metaVersion))); err != nil {
			return fmt.Errorf("read its version: %w", errors.Join(err, tx.st.damage))
		}
		return accept(o, kind, found)
	})
	if err != nil || found == o.Version {
		return found, err
	}
	return found, db.Update(func(tx *bbolt.Tx) error { return stamp(tx, o) })
}

// accept decides whether a file of that kind and version may be used.
func accept(o Options, kind string, version int) error {
	switch {
	case kind != o.Kind:
		return fault.New(fault.Conflict, "it is a journal of %q, not of %q", kind, o.Kind)
	case version > o.Version:
		return fault.New(fault.Conflict, "its format %d is newer than %d: start the release that wrote it", version, o.Version)
	case version < o.Version-1:
		return fault.New(fault.Conflict, "its format %d is too old for %d: start a release in between first", version, o.Version)
	}
	return nil
}

// setAside moves the file out of the way, under a name that nothing has.
func setAside(path string) (string, error) {
	stem := path + ".bad-" + time.Now().UTC().Format("20060102T150405.000000Z")
	name := stem
	for i := 1; ; i++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", fmt.Errorf("set it aside: %w", err)
		}
		name = stem + "-" + strconv.Itoa(i)
	}
	if err := os.Rename(path, name); err != nil {
		return "", fmt.Errorf("set it aside: %w", err)
	}
	return name, syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// errFault is a fault on mapped memory, which is how the disk, or whoever cut the
// file, fails under bbolt. It is damage.
var errFault = fmt.Errorf("mapped file cannot be read: %w", errDamaged)

// guard turns such a fault into an error. Other panics pass.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = errFault
		default:
			panic(p)
		}
	}()
	return f()
}

// guardAll turns every panic into damage: bbolt panics where a page is not what
// it should be.
func guardAll(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v: %w", p, errDamaged)
		}
	}()
	return guard(f)
}
