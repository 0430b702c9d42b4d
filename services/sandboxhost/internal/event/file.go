package event

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/encoding/protodelim"

	"staddle.internal/kit/wholefile"

	sandboxhostv1 "staddle.internal/proto/gen/staddle/sandboxhost/v1"
)

const (
	// slack is how many more entries than events a file has before it is written anew.
	slack = 4096
	// maxEntry bounds what is read as one event.
	maxEntry = 16 << 10
	fileMode = 0o600
)

// file has events one behind the other, each with its length before it; the last one of the same
// counts. It is not synced: it is to outlive the process, not the power.
type file struct {
	f       *os.File
	size    int64 // up to where it is whole
	entries int
	owing   bool // it lacks some that are in memory
}

// openFile returns the events of a file, oldest first. What a power cut left behind the
// last whole one is taken away.
func openFile(path string) ([]*sandboxhostv1.Event, *file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, fileMode)
	if err != nil {
		return nil, nil, err
	}
	opened := &file{f: f}
	events, err := opened.read()
	if err == nil {
		err = f.Truncate(opened.size)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, errors.Join(err, f.Close()))
	}
	return events, opened, nil
}

// read returns the whole events, and notes where they end.
func (f *file) read() ([]*sandboxhostv1.Event, error) {
	var events []*sandboxhostv1.Event
	source := &counted{from: bufio.NewReader(f.f)}
	for {
		e := &sandboxhostv1.Event{}
		err := protodelim.UnmarshalOptions{MaxSize: maxEntry}.UnmarshalFrom(source, e)
		if source.err != nil {
			return nil, source.err
		}
		if err != nil || e.GetSeq() == 0 || e.GetUid() == "" { // nothing more that is whole
			return events, nil //nolint:nilerr // that is how the end is found
		}
		events = append(events, e)
		f.size, f.entries = source.n, f.entries+1
	}
}

// counted counts what is read of a file, and keeps why it could not be read.
type counted struct {
	from *bufio.Reader
	n    int64
	err  error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.note(n, err)
	return n, err
}

func (c *counted) ReadByte() (byte, error) {
	b, err := c.from.ReadByte()
	if err == nil {
		c.n++
	}
	c.note(0, err)
	return b, err
}

func (c *counted) note(n int, err error) {
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
}

// encode puts events one behind the other.
func encode(events []*sandboxhostv1.Event) ([]byte, error) {
	var entries bytes.Buffer
	for _, e := range events {
		if _, err := protodelim.MarshalTo(&entries, e); err != nil {
			return nil, err
		}
	}
	return entries.Bytes(), nil
}

// add appends events. A file that has much more than all, or that lacked some until now,
// is written anew.
func (f *file) add(events []*sandboxhostv1.Event, all func() []*sandboxhostv1.Event) error {
	entries, err := encode(events)
	if err != nil {
		return err
	}
	if n, err := f.f.Write(entries); err != nil {
		f.owing = true
		if n > 0 {
			err = errors.Join(err, f.f.Truncate(f.size))
		}
		return err
	}
	f.size += int64(len(entries))
	f.entries += len(events)
	if !f.owing && f.entries <= maxEvents+slack {
		return nil
	}
	return f.rewrite(all())
}

// rewrite puts a file with exactly these events in its place.
func (f *file) rewrite(events []*sandboxhostv1.Event) error {
	entries, err := encode(events)
	if err != nil {
		return err
	}
	err = wholefile.Replace(f.f.Name(), fileMode, func(w *os.File) error {
		_, err := w.Write(entries)
		return err
	})
	if err != nil {
		f.owing = true
		return err
	}
	next, err := os.OpenFile(f.f.Name(), os.O_WRONLY|os.O_APPEND, fileMode)
	if err != nil {
		f.owing = true
		return err
	}
	err = f.f.Close()
	*f = file{f: next, size: int64(len(entries)), entries: len(events)}
	return err
}

func (f *file) close() error { return f.f.Close() }
