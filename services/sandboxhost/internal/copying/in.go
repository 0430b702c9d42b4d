package copying

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/tartree"
	"staddle.internal/services/sandboxhost/internal/inroot"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

// CopyIn makes what a stream says.
func (s *Server) CopyIn(st grpc.ClientStreamingServer[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse]) error {
	first, err := st.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return fault.New(fault.Invalid, "the first message is no start")
	}
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start.GetName() == "." || start.GetName() == ".." {
		return fault.New(fault.Invalid, "start.name %q: it is no name of a file; leave it empty for any names", start.GetName())
	}
	report, err := s.do(st.Context(), start.GetUid(), start.GetContainer(), func(ctx context.Context, root *inroot.Root, who inroot.Identity) (tartree.Report, error) {
		return unpacked(ctx, root, who, start, &receiver{st: st})
	})
	if err != nil {
		return err
	}
	return st.SendAndClose(&sandboxhostv1.CopyInResponse{Report: reportOf(report)})
}

// unpacked makes what comes.
func unpacked(ctx context.Context, root *inroot.Root, who inroot.Identity, start *sandboxhostv1.CopyInStart, from io.Reader) (report tartree.Report, err error) {
	folder, as, err := target(root, start)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	o := tartree.UnpackOptions{Top: start.GetName(), As: as, Exact: true, Times: start.GetArchive()}
	var strange error
	o.Owner = func(uid, gid int) (int, int) {
		if !start.GetArchive() {
			return who.UID, who.GID
		}
		u, g, err := who.Outside(uid, gid)
		if err != nil {
			strange = err
			return -1, -1 // which changes nothing
		}
		return u, g
	}
	report, err = tartree.Unpack(ctx, from, folder, o)
	if err == nil {
		_, err = io.Copy(io.Discard, from) // what fills up the last block, to the end that tells a whole stream
	}
	if err == nil {
		err = strange
	}
	return report, err
}

// target is the folder that things are put in, and the name that the entry gets there; empty
// for its own.
func target(root *inroot.Root, start *sandboxhostv1.CopyInStart) (folder *os.Root, as string, err error) {
	at := start.GetPath()
	folder, err = folderAt(root, at)
	switch {
	case err == nil:
		return folder, "", nil
	case start.GetName() == "", strings.HasSuffix(at, "/"), path.Base(at) == ".", path.Base(at) == "..":
		return nil, "", err
	}
	folder, err = folderAt(root, path.Dir(at))
	return folder, path.Base(at), err
}

// folderAt opens a folder of the container.
func folderAt(root *inroot.Root, at string) (folder *os.Root, err error) {
	place, err := find(root, at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.Close()) }()
	info, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fault.New(fault.Conflict, "%s is no folder", at)
	}
	return tartree.Folder(place)
}

// receiver reads the bytes of a stream. Only data_end ends them well.
type receiver struct {
	st    grpc.ClientStreamingServer[sandboxhostv1.CopyInRequest, sandboxhostv1.CopyInResponse]
	left  []byte
	ended bool
}

// errBroken is a stream that has ended without saying that it is whole.
var errBroken = fault.New(fault.Invalid, "the stream ended before its data did: send data_end")

// Read returns what came.
func (r *receiver) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		m, err := r.st.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errBroken
		case err != nil:
			return 0, err
		case m.GetStart() != nil:
			return 0, fault.New(fault.Invalid, "a second start: a stream is one copy")
		}
		r.left, r.ended = m.GetData(), m.GetDataEnd()
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}
