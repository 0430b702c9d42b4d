package tartree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// PackOptions says how to pack.
type PackOptions struct {
	// Owner gives the numbers of a user and group as they are to be in the stream. Nil
	// leaves them as they are here.
	Owner func(uid, gid uint32) (int, int)
	// Moved is told of bytes as they are packed. May be nil.
	Moved func(bytes int)
}

// Pack packs the file, or the folder with all that is in it, that place stands for, which was
// opened with O_PATH and stays open. Names in the stream begin with top, "." for none. Of a
// folder, what disappears meanwhile is left out; a file that gets shorter while it is read is
// Conflict. Anything else, and a file that the kernel makes as it is read, is Invalid. It ends
// with the cause of ctx.
func Pack(ctx context.Context, w io.Writer, top string, place *os.File, o PackOptions) (Report, error) {
	p := packer{ctx: ctx, tar: tar.NewWriter(w), o: o}
	err := p.place(place, top)
	if err == nil {
		err = p.tar.Close()
	}
	return p.report, err
}

type packer struct {
	ctx    context.Context //nolint:containedctx // it lives as long as one call
	tar    *tar.Writer
	o      PackOptions
	report Report
}

func (p *packer) place(place *os.File, top string) error {
	info, err := place.Stat()
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		folder, err := Folder(place)
		if err != nil {
			return err
		}
		return errors.Join(p.folder(folder, top, 0), folder.Close())
	case info.Mode().IsRegular():
		f, err := reopen(place)
		if err != nil {
			return err
		}
		err = errors.Join(p.content(f, top), f.Close())
		if err == nil && p.report.Skipped > 0 {
			err = fault.New(fault.Invalid, "%s is a file that the kernel makes as it is read", top)
		}
		return err
	}
	return fault.New(fault.Invalid, "%s is neither a file nor a folder", top)
}

func (p *packer) folder(folder *os.Root, name string, depth int) (err error) {
	if depth > maxDepth {
		return fault.New(fault.Invalid, "folder %.80q… is %d folders deep, and may be %d", name, depth, maxDepth)
	}
	list, err := folder.Open(".")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, list.Close()) }()
	info, err := list.Stat()
	if err != nil {
		return err
	}
	if kernels, err := madeByKernel(list.Fd()); err != nil || kernels {
		p.report.Skipped++
		return err
	}
	if err := p.header(info, name+"/", ""); err != nil {
		return err
	}
	for {
		entries, err := list.ReadDir(256)
		for _, e := range entries {
			if p.ctx.Err() != nil {
				return context.Cause(p.ctx)
			}
			if err := p.entry(folder, e.Name(), path.Join(name, e.Name()), depth); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", name, err)
		}
	}
}

// entry packs what is in a folder under its own name there.
func (p *packer) entry(folder *os.Root, own, name string, depth int) (err error) {
	info, err := folder.Lstat(own)
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case os.ModeDir:
		below, err := folder.OpenRoot(own)
		if err != nil {
			return err
		}
		return errors.Join(p.folder(below, name, depth+1), below.Close())
	case os.ModeSymlink:
		target, err := folder.Readlink(own)
		if err != nil {
			return err
		}
		return p.header(info, name, target)
	case 0:
		f, err := openRegular(folder, own)
		if err != nil {
			return err
		}
		return errors.Join(p.content(f, name), f.Close())
	}
	p.report.Skipped++
	return nil
}

// openRegular opens a file only once it is known to be a regular one: opening a pipe or a device
// may wait, or do something.
func openRegular(folder *os.Root, name string) (f *os.File, err error) {
	place, err := folder.OpenFile(name, unix.O_PATH|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	return reopen(place)
}

// Folder opens a folder that place stands for, for what is below it.
func Folder(place *os.File) (*os.Root, error) { return os.OpenRoot(throughPlace(place)) }

// throughPlace is a path to the very file or folder that was opened, whatever its name leads to now.
func throughPlace(place *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(place.Fd())) }

// reopen opens, for reading, the regular file that a place stands for, which was opened
// with O_PATH. Anything else is fs.ErrNotExist: no such file is there any more.
func reopen(place *os.File) (*os.File, error) {
	info, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: place.Name(), Err: os.ErrNotExist}
	}
	return os.Open(throughPlace(place))
}

// content packs a regular file.
func (p *packer) content(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if kernels, err := madeByKernel(f.Fd()); err != nil || kernels || !info.Mode().IsRegular() {
		p.report.Skipped++
		return err
	}
	if err := p.header(info, name, ""); err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for left := info.Size(); left > 0; {
		n, err := f.Read(buf[:min(left, chunk)])
		if n > 0 {
			if p.ctx.Err() != nil {
				return context.Cause(p.ctx)
			}
			if _, err := p.tar.Write(buf[:n]); err != nil {
				return err
			}
			left -= int64(n)
			p.report.Bytes += uint64(n)
			if p.o.Moved != nil {
				p.o.Moved(n)
			}
		}
		if left > 0 && errors.Is(err, io.EOF) {
			return fault.New(fault.Conflict, "file %s became shorter while it was read; copy again", name)
		}
		if err != nil && left > 0 {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	return nil
}

// header begins an entry.
func (p *packer) header(info os.FileInfo, name, target string) error {
	h := &tar.Header{Name: name, Linkname: target, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case os.ModeDir:
		h.Typeflag = tar.TypeDir
	case os.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
	default:
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
		if p.o.Owner != nil {
			h.Uid, h.Gid = p.o.Owner(st.Uid, st.Gid)
		}
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	p.report.Entries++
	return nil
}
