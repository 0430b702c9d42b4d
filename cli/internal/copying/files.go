package copying

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/tartree"
)

// Local says how files of this machine are made or read.
type Local struct {
	// Path of the file or folder.
	Path string
	// Archive keeps modes and times exactly, and for root users and groups.
	Archive bool
	// Moved is told of bytes, by the goroutine that called.
	Moved func(bytes int)
}

// OutTo copies what is at a path of a container to a file or folder of this machine: into
// a folder that is there, and else under the very name. Skipped in the result counts also what
// was left out here: links that lead out of the copy.
func OutTo(ctx context.Context, client sandboxhostv1.CopyServiceClient, req *sandboxhostv1.CopyOutRequest, to Local) (skipped uint64, err error) {
	top := tartree.TopOf(req.GetPath())
	folder, as, err := target(to.Path, top)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	reader, writer := io.Pipe()
	type sent struct {
		report *sandboxhostv1.CopyReport
		err    error
	}
	got := make(chan sent, 1)
	go func() { // ends with the stream, or when its reader is closed; waited for below
		report, err := Out(ctx, client, req, writer)
		_ = writer.CloseWithError(err) // never fails
		got <- sent{report, err}
	}()
	o := tartree.UnpackOptions{Top: top, As: as, Exact: to.Archive, Times: to.Archive, Inward: true, Moved: to.Moved}
	if to.Archive && os.Geteuid() == 0 {
		o.Owner = func(uid, gid int) (int, int) { return uid, gid }
	}
	made, err := tartree.Unpack(ctx, reader, folder, o)
	if err == nil {
		_, err = io.Copy(io.Discard, reader) // what fills up the last block, to the word that it is whole
	}
	_ = reader.CloseWithError(err) // never fails
	r := <-got
	if err == nil {
		err = r.err
	}
	return r.report.GetSkipped() + made.Skipped, err
}

// target opens the folder that things are put in, with the name that the entry gets there; empty
// for its own.
func target(path, top string) (folder *os.Root, as string, err error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		folder, err = os.OpenRoot(path)
		return folder, "", err
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, "", err
	case err != nil && top == ".":
		if err := os.Mkdir(path, 0o755); err != nil {
			return nil, "", err
		}
		folder, err = os.OpenRoot(path)
		return folder, "", err
	case top == ".":
		return nil, "", fault.New(fault.Conflict, "%s is no folder", path)
	case strings.HasSuffix(path, "/"):
		return nil, "", fault.New(fault.NotFound, "%s is no folder that is there", path)
	}
	folder, err = os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		err = fault.New(fault.NotFound, "there is no folder %s", filepath.Dir(path))
	}
	return folder, filepath.Base(path), err
}

// InFrom copies a file or folder of this machine into a container.
func InFrom(ctx context.Context, client sandboxhostv1.CopyServiceClient, start *sandboxhostv1.CopyInStart, from Local) (skipped uint64, err error) {
	whole, err := filepath.Abs(from.Path)
	if err != nil {
		return 0, err
	}
	place, err := os.OpenFile(whole, unix.O_PATH, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fault.New(fault.NotFound, "there is no %s", from.Path)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	top := tartree.TopOf(whole)
	if start.Name = top; top == "." {
		start.Name = ""
	}
	reader, writer := io.Pipe()
	packed := make(chan result, 1)
	go func() { // ends with the files, or when its reader is closed; waited for below
		report, err := tartree.Pack(ctx, writer, top, place, tartree.PackOptions{})
		_ = writer.CloseWithError(err) // never fails
		packed <- result{report, err}
	}()
	report, err := In(ctx, client, start, &counted{reader, from.Moved})
	_ = reader.CloseWithError(errOver) // never fails
	r := <-packed
	if r.err != nil && !errors.Is(r.err, errOver) {
		err = r.err
	}
	return r.report.Skipped + report.GetSkipped(), err
}

// errOver ends the packing of what nobody wants any more.
var errOver = errors.New("the copy is over")

type result struct {
	report tartree.Report
	err    error
}

// counted tells of what is read.
type counted struct {
	io.Reader
	moved func(int)
}

// Read reads, and tells how much.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if c.moved != nil && n > 0 {
		c.moved(n)
	}
	return n, err
}
