package logs

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// move splices from the pipe into the open segment.
func (w *writer) move(pipe *os.File) (int64, error) {
	at := w.end - w.start
	room := min(batch, w.st.store.segment-at)
	if w.plainCopy {
		return w.copy(pipe, at, room)
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	target, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int64
	var spliceErr error
	err = raw.Read(func(from uintptr) bool {
		controlErr := target.Control(func(to uintptr) {
			offset := at
			n, spliceErr = unix.Splice(int(from), nil, int(to), &offset, int(room), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		})
		spliceErr = errors.Join(spliceErr, controlErr)
		return !errors.Is(spliceErr, unix.EAGAIN) && !errors.Is(spliceErr, unix.EINTR)
	})
	if err != nil {
		return 0, &pipeError{err}
	}
	if errors.Is(spliceErr, unix.EINVAL) {
		w.plainCopy = true
		return w.copy(pipe, at, room)
	}
	return n, spliceErr
}

// copy is move for a filesystem without splice. What was read and could not be
// written is the next to be written, or to be thrown away.
func (w *writer) copy(pipe *os.File, at, room int64) (int64, error) {
	if len(w.unwritten) == 0 {
		n, err := w.read(pipe, room)
		if err != nil || n == 0 {
			return 0, err
		}
		w.unwritten = w.buffer[:n]
	}
	n, err := w.file.WriteAt(w.unwritten[:min(int64(len(w.unwritten)), room)], at)
	w.unwritten = w.unwritten[n:]
	if n > 0 {
		err = nil // what is left meets it again
	}
	return int64(n), err
}

// read reads into the buffer. Zero is the end.
func (w *writer) read(pipe *os.File, most int64) (int, error) {
	if w.buffer == nil {
		w.buffer = make([]byte, MaxChunk)
	}
	n, err := pipe.Read(w.buffer[:min(int64(len(w.buffer)), most)])
	if errors.Is(err, io.EOF) {
		return 0, nil
	}
	if err != nil {
		return 0, &pipeError{err}
	}
	return n, nil
}

// pipeError tells what is wrong with the pipe from what is wrong with the disk.
type pipeError struct{ error }

func (p *pipeError) Unwrap() error { return p.error }

func isPipeError(err error) bool {
	_, ok := errors.AsType[*pipeError](err)
	return ok
}
