package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/boottime"
)

// ErrGone says that the group of a Meter is no more.
var ErrGone = errors.New("the control group is gone")

// Reading is what a group uses, with all below it. What the machine does not count, or
// what could not be read, is nil.
type Reading struct {
	// At is the time since boot at which CPU was read.
	At time.Duration
	// CPU is processor time in nanoseconds.
	CPU *uint64
	// Memory is all that is counted, WorkingSet what is not page cache, and MemoryLimit
	// what may be used; all in bytes. No limit is nil.
	Memory, WorkingSet, MemoryLimit *uint64
	// PIDs is how many tasks there are.
	PIDs *uint64
	// IORead and IOWritten are bytes.
	IORead, IOWritten *uint64
	// OOMKills is how many processes the kernel has ended for memory; in version 1 only
	// those of the group itself.
	OOMKills *uint64
}

// source is one file that says something of a group.
type source struct {
	file string
	read func(raw []byte, r *Reading)
}

const (
	// tries and prompt bound how exact the time of a reading is: one during which this
	// process was stopped is done again. A value read at another time than is said
	// would be a spike in every average.
	tries  = 3
	prompt = 5 * time.Millisecond
	// largest bounds what is read of one file; memory.stat has a few KiB.
	largest = 16 << 10
)

// Meter is the open files of one group. Kept open, a reading costs microseconds. It is
// for one goroutine. Open files keep no group: it can be removed, and then Read says
// ErrGone.
type Meter struct {
	cpu   *meterFile
	files []*meterFile
	buf   []byte
}

type meterFile struct {
	*os.File
	read func(raw []byte, r *Reading)
}

// Meter opens the files of a group. It returns ErrGone where there is none. The caller
// closes it.
func (t *Tree) Meter(group string) (_ *Meter, err error) {
	m := &Meter{buf: make([]byte, largest)}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	cpu, others := t.sources()
	if m.cpu, err = open(group, cpu); err != nil {
		return nil, err
	}
	for _, s := range others {
		f, err := open(group, s)
		if err != nil {
			return nil, err
		}
		if f != nil {
			m.files = append(m.files, f)
		}
	}
	if m.cpu == nil && len(m.files) == 0 {
		return nil, ErrGone
	}
	return m, nil
}

// located is a source in its hierarchy.
type located struct {
	hierarchy
	source
}

// open opens one file; nil where it is not there.
func open(group string, s located) (*meterFile, error) {
	if s.file == "" {
		return nil, nil //nolint:nilnil // nobody counts it
	}
	f, err := os.Open(filepath.Join(s.path(group), s.file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil //nolint:nilnil // nobody counts it here
	}
	if err != nil {
		return nil, fmt.Errorf("open control group %s: %w", group, err)
	}
	return &meterFile{f, s.read}, nil
}

// sources says which hierarchy counts what. Version 2 counts processor time also where
// it has no controllers, but then version 1 does as well.
func (t *Tree) sources() (cpu located, others []located) {
	for _, h := range t.hierarchies {
		switch {
		case h.has("cpuacct"):
			cpu = located{h, source{"cpuacct.usage", readCPU1}}
		case h.unified && cpu.file == "":
			cpu = located{h, source{"cpu.stat", readCPU2}}
		}
		for controller, files := range filesOf[h.unified] {
			if !h.has(controller) {
				continue
			}
			for _, s := range files {
				others = append(others, located{h, s})
			}
		}
	}
	return cpu, others
}

// Read reads what the group uses. When the group is gone it returns ErrGone; a value that
// cannot be read is left out.
func (m *Meter) Read() (Reading, error) {
	var r Reading
	if err := m.readCPU(&r); err != nil {
		return Reading{}, err
	}
	for _, f := range m.files {
		raw, err := m.raw(f)
		if err != nil {
			return Reading{}, err
		}
		f.read(raw, &r)
	}
	if r.Memory != nil && r.WorkingSet != nil { // so far it holds the page cache
		left := *r.Memory - min(*r.Memory, *r.WorkingSet)
		r.WorkingSet = &left
	} else {
		r.WorkingSet = nil
	}
	return r, nil
}

// readCPU reads processor time, and when that was. Where it cannot be told when, the
// time is left out.
func (m *Meter) readCPU(r *Reading) error {
	for range tries {
		before := boottime.Now()
		r.At = before
		if m.cpu == nil {
			return nil
		}
		raw, err := m.raw(m.cpu)
		if err != nil {
			return err
		}
		if boottime.Now()-before <= prompt {
			m.cpu.read(raw, r)
			return nil
		}
	}
	return nil
}

// raw is what a file says now. A file that cannot be read says nothing.
func (m *Meter) raw(f *meterFile) ([]byte, error) {
	n, err := f.ReadAt(m.buf, 0)
	if errors.Is(err, unix.ENODEV) {
		return nil, ErrGone
	}
	if n == 0 {
		return nil, nil // nothing was counted yet, or it is not to be read
	}
	return m.buf[:n], nil
}

// Close closes the files.
func (m *Meter) Close() error {
	var errs []error
	for _, f := range append(m.files, m.cpu) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
