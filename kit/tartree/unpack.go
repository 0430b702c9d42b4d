package tartree

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"staddle.internal/kit/fault"
)

// maxFolders is how many folders one stream may make: their modes and times are kept until the end.
const maxFolders = 1 << 20

// UnpackOptions says how to unpack.
type UnpackOptions struct {
	// Top is the first element that all names in the stream must have. Empty or "." lets
	// them have any.
	Top string
	// As is what is written in place of Top. Empty means that it stays.
	As string
	// Owner gives the user and group of what is made, from those in the stream. Nil means
	// the user of this process.
	Owner func(uid, gid int) (int, int)
	// Exact gives files and folders the very mode that the stream says. Otherwise the
	// umask of this process counts too, and folders stay open to their owner.
	Exact bool
	// Times keeps times of change.
	Times bool
	// Inward leaves out symbolic links that lead out of Top, for whoever does not trust them, and
	// puts nothing behind a link.
	Inward bool
	// Moved is told of bytes as they are unpacked. May be nil.
	Moved func(bytes int)
}

// Unpack makes below a folder what a stream says. A file takes the place of one that is
// there when it is whole; folders that are there stay as they are. When the stream breaks, what was
// whole stays. Names that lead out of the folder are Invalid, a full disk is Exhausted. It ends with the
// cause of ctx.
func Unpack(ctx context.Context, r io.Reader, folder *os.Root, o UnpackOptions) (Report, error) {
	if o.Top == "." {
		o.Top = ""
	}
	u := unpacker{ctx: ctx, folder: folder, o: o}
	in := tar.NewReader(r)
	for {
		if ctx.Err() != nil {
			return u.report, context.Cause(ctx)
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return u.report, u.finish()
		}
		if err == nil {
			err = u.entry(h, in)
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
			return u.report, fault.New(fault.Invalid, "this is no whole tar stream: %w", err)
		}
		if err != nil {
			return u.report, exhausted(err)
		}
	}
}

type unpacker struct {
	ctx    context.Context //nolint:containedctx // it lives as long as one call
	folder *os.Root
	o      UnpackOptions
	made   []madeFolder
	real   string // a folder that was seen to be behind no link
	report Report
}

// madeFolder gets its mode and time when all is in it.
type madeFolder struct {
	name string
	mode os.FileMode
	at   time.Time
}

// place is where an entry is to be, below the folder.
func (u *unpacker) place(name string) (string, error) {
	name, err := cleaned(name)
	if err != nil || u.o.Top == "" {
		return name, err
	}
	first, rest, deeper := strings.Cut(name, "/")
	if first != u.o.Top {
		return "", fault.New(fault.Invalid, "the name %.200q is not part of %q", name, u.o.Top)
	}
	if u.o.As != "" {
		first = u.o.As
	}
	if !deeper {
		return first, nil
	}
	return path.Join(first, rest), nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return fmt.Errorf("make folders of %s: %w", name, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.makeFolder(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.makeFile(name, h, content)
	case tar.TypeSymlink, tar.TypeLink:
		var left bool
		if left, err = u.makeLink(name, h); left {
			u.report.Skipped++
			return nil
		}
	default:
		u.report.Skipped++
		return nil
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", name, err)
	}
	u.report.Entries++
	return nil
}

// makeLink makes a link, unless it is one to leave out.
func (u *unpacker) makeLink(name string, h *tar.Header) (left bool, err error) {
	if h.Typeflag == tar.TypeSymlink {
		if u.o.Inward && leadsOut(name, h.Linkname, min(1, len(u.o.Top))) {
			return true, nil
		}
		return false, u.aside(name, func(aside string) error {
			return errors.Join(u.folder.Symlink(h.Linkname, aside), u.own(aside, h))
		})
	}
	other, err := u.place(h.Linkname)
	if err != nil {
		return false, err
	}
	if info, err := u.folder.Lstat(other); u.o.Inward && (err != nil || !info.Mode().IsRegular()) {
		return true, nil //nolint:nilerr // a link to what is not there, or to a link that leads elsewhere from here
	}
	return false, u.aside(name, func(aside string) error { return u.folder.Link(other, aside) })
}

// parents makes the folders that an entry is in, as far as they are not there.
func (u *unpacker) parents(name string) error {
	if name == "." || name == u.real {
		return nil
	}
	look := u.folder.Stat
	if u.o.Inward {
		look = u.folder.Lstat
		if err := u.parents(path.Dir(name)); err != nil {
			return err
		}
	}
	info, err := look(name)
	switch {
	case err == nil && info.IsDir():
		if u.o.Inward {
			u.real = name
		}
		return nil
	case err == nil && u.o.Inward:
		return fault.New(fault.Conflict, "%s is no folder", name)
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	const usual = 0o755
	return u.makeFolder(name, &tar.Header{Mode: usual, ModTime: time.Now()})
}

func (u *unpacker) makeFolder(name string, h *tar.Header) error {
	if name == "." {
		return nil // the folder itself
	}
	mode := os.FileMode(h.Mode).Perm()
	err := u.folder.Mkdir(name, mode|0o700)
	if errors.Is(err, os.ErrExist) {
		info, statErr := u.folder.Stat(name)
		if statErr == nil && info.IsDir() {
			return nil
		}
		return errors.Join(fault.New(fault.Conflict, "a file is where a folder is to be"), statErr)
	}
	if err != nil {
		return err
	}
	if len(u.made) == maxFolders {
		return fault.New(fault.Exhausted, "there are more than %d folders", maxFolders)
	}
	u.made = append(u.made, madeFolder{name, mode, h.ModTime})
	return u.own(name, h)
}

// own gives something its owner.
func (u *unpacker) own(name string, h *tar.Header) error {
	if u.o.Owner == nil {
		return nil
	}
	uid, gid := u.o.Owner(h.Uid, h.Gid)
	return u.folder.Lchown(name, uid, gid)
}

func (u *unpacker) makeFile(name string, h *tar.Header, content io.Reader) error {
	return u.aside(name, func(aside string) error {
		mode := os.FileMode(h.Mode).Perm()
		f, err := u.folder.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		err = u.fill(f, content)
		if u.o.Owner != nil && err == nil {
			uid, gid := u.o.Owner(h.Uid, h.Gid)
			err = f.Chown(uid, gid)
		}
		if u.o.Exact && err == nil {
			err = f.Chmod(mode) // after its owner: that takes bits away
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if u.o.Times {
			return u.folder.Chtimes(aside, h.ModTime, h.ModTime)
		}
		return nil
	})
}

// fill writes what comes, in pieces, so that an end of ctx is seen.
func (u *unpacker) fill(f *os.File, content io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := content.Read(buf)
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return err
			}
			u.report.Bytes += uint64(n)
			if u.o.Moved != nil {
				u.o.Moved(n)
			}
		}
		switch {
		case u.ctx.Err() != nil:
			return context.Cause(u.ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// aside makes something under a name of its own, and puts it in its place when it is whole.
func (u *unpacker) aside(name string, fn func(aside string) error) error {
	aside := path.Join(path.Dir(name), ".staddle-copy-"+rand.Text())
	err := fn(aside)
	if err == nil {
		err = u.folder.Rename(aside, name)
	}
	// Also after a success: two names of one file are not renamed into each other.
	if removeErr := u.folder.Remove(aside); err == nil && removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
		err = removeErr
	}
	return err
}

// finish gives the folders that were made their modes and times, the innermost first.
func (u *unpacker) finish() error {
	for i := len(u.made) - 1; i >= 0; i-- {
		m := u.made[i]
		if u.o.Exact {
			if err := u.folder.Chmod(m.name, m.mode); err != nil {
				return fmt.Errorf("set mode of %s: %w", m.name, err)
			}
		}
		if u.o.Times {
			if err := u.folder.Chtimes(m.name, m.at, m.at); err != nil {
				return fmt.Errorf("set time of %s: %w", m.name, err)
			}
		}
	}
	return nil
}
