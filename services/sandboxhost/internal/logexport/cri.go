package logexport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"staddle.internal/kit/id"
	"staddle.internal/kit/wholefile"
	"staddle.internal/services/sandboxhost/internal/logs"
	"staddle.internal/services/sandboxhost/internal/namespace"
)

// CRI says where files in the format of CRI go. They lie as the kubelet lays them out:
// <Dir>/<manager>_<name>_<uid>/<container>/<attempt>.log, and beside it those that were
// full, with the time at the end of their names.
type CRI struct {
	// Dir holds them, and must be this node's alone. Its group may read them.
	Dir string
	// Notes is a folder of this process that says which folder belongs to which sandbox.
	Notes string
	// MaxSize of one file in bytes.
	MaxSize int64
	// MaxFiles of one attempt, with the one that is written to.
	MaxFiles int
}

// criLine is how much text a record has at most, as at the kubelet.
const criLine = 16 << 10

const (
	folderMode = 0o750
	fileMode   = 0o640
)

// NewCRI returns the export as files. It opens nothing until Run.
func NewCRI(cfg CRI, deps Deps) *Export {
	k := &criKind{cfg: cfg, deps: deps}
	e := newExport(k, deps)
	k.export = e
	return e
}

type criKind struct {
	cfg    CRI
	deps   Deps
	export *Export
}

func (k *criKind) name() string { return "cri" }
func (k *criKind) most() int    { return criLine }
func (k *criKind) close() error { return nil }
func (k *criKind) open(a logs.Attempt) sink {
	return &criSink{kind: k, of: a, note: note{k.deps.Source, a, "cri.json"}}
}

// folder returns the folder of a sandbox, which is the same for ever: it is noted
// before anything is in it.
func (k *criKind) folder(uid id.Sandbox) (string, error) {
	folder, err := k.noted(uid)
	if err != nil || folder != "" && filepath.Dir(folder) == k.cfg.Dir {
		return folder, err
	}
	name, err := k.deps.Name(uid)
	if err != nil {
		return "", fmt.Errorf("find the name of sandbox %s: %w", uid, err)
	}
	if err := os.MkdirAll(filepath.Dir(k.note(uid)), 0o700); err != nil {
		return "", fmt.Errorf("note the exports of sandbox %s: %w", uid, err)
	}
	folder = filepath.Join(k.cfg.Dir, name.Manager+"_"+name.Name+"_"+uid.Lower())
	return folder, wholefile.Replace(k.note(uid), 0o600, func(f *os.File) error {
		_, err := f.WriteString(folder)
		return err
	})
}

// note is the file with the folder of a sandbox.
func (k *criKind) note(uid id.Sandbox) string {
	return filepath.Join(k.cfg.Notes, uid.Lower(), "folder")
}

// noted is the folder that was noted for a sandbox, or none.
func (k *criKind) noted(uid id.Sandbox) (string, error) {
	raw, err := os.ReadFile(k.note(uid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("look for the exports of sandbox %s: %w", uid, err)
	}
	return string(raw), nil
}

func (k *criKind) remove(a logs.Attempt) error {
	folder, err := k.noted(a.UID)
	if err != nil {
		return err
	}
	if a.Container == "" {
		if folder != "" {
			err = os.RemoveAll(folder)
		}
		return errors.Join(err, os.RemoveAll(filepath.Join(k.cfg.Notes, a.UID.Lower())))
	}
	if folder == "" {
		return nil
	}
	files, err := criFiles(filepath.Join(folder, a.Container), a.Attempt)
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

func (k *criKind) sweep(kept map[id.Sandbox]bool) error {
	uids, err := namespace.List(k.cfg.Notes)
	for _, uid := range uids {
		if !kept[uid] {
			err = errors.Join(err, k.remove(logs.Attempt{UID: uid}))
		}
	}
	return err
}

// ourDir makes a folder below Dir, which the group of Dir may read.
func (k *criKind) ourDir(path string) error {
	if err := os.MkdirAll(k.cfg.Dir, folderMode); err != nil {
		return err
	}
	rel, err := filepath.Rel(k.cfg.Dir, path)
	if err != nil {
		return err
	}
	at := k.cfg.Dir
	for part := range strings.SplitSeq(rel, string(filepath.Separator)) {
		at = filepath.Join(at, part)
		switch err := os.Mkdir(at, folderMode); {
		case errors.Is(err, os.ErrExist):
			continue
		case err != nil:
			return err
		}
		if err := k.share(at, folderMode); err != nil {
			return err
		}
	}
	return nil
}

// share gives what was made to the group of Dir, whatever the mask of this process.
func (k *criKind) share(path string, mode os.FileMode) error {
	group, err := groupOf(k.cfg.Dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(path, -1, group), os.Chmod(path, mode))
}

// criFiles lists the files of one attempt, the oldest first: the one that is written to
// has no time and comes last.
func criFiles(dir string, attempt uint64) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name, and so by time
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list exports: %w", err)
	}
	current := strconv.FormatUint(attempt, 10) + ".log"
	var all []string
	last := ""
	for _, e := range entries {
		switch {
		case e.Name() == current:
			last = filepath.Join(dir, current)
		case strings.HasPrefix(e.Name(), current+"."):
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	if last != "" {
		all = append(all, last)
	}
	return all, nil
}

// criSink writes the files of one attempt.
//
// The note says at which length of which file the offsets were those; what the files
// hold beyond that says how far they are by itself. So nothing has to be durable per
// record, and nothing that a reader of the files may have seen is ever taken back.
type criSink struct {
	kind *criKind
	of   logs.Attempt
	note note

	path   string
	file   *os.File
	inode  uint64
	size   int64     // of the file
	inFile offsets   // how far the file goes
	at     offsets   // the same with what is in lines
	last   time.Time // of the newest record: times never go back
	lines  []byte    // not written yet
	synced bool      // the note is true of the present length
}

// flushSize is how many bytes are written at once at most, but for one record.
const flushSize = 64 << 10

func (s *criSink) take(_ context.Context, r record) error {
	i := of(r.stderr)
	if r.offset > s.at[i] {
		if err := s.jump(r); err != nil {
			return err
		}
	}
	if r.at.IsZero() && s.last.IsZero() {
		r.at = time.Now()
	}
	line, at := criRecord(r, s.last)
	if n := s.size + int64(len(s.lines)); n > 0 && n+int64(len(line)) > s.kind.cfg.MaxSize {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	s.lines = append(s.lines, line...)
	s.at[i], s.last, s.synced = r.next(), at, false
	if len(s.lines) < flushSize {
		return nil
	}
	return s.flush()
}

// jump notes that bytes before a record are not kept any more, before it is written.
func (s *criSink) jump(r record) error {
	if err := s.flush(); err != nil {
		return err
	}
	i := of(r.stderr)
	s.kind.export.missing(s.of, r, s.at[i], gone)
	s.at[i] = r.offset
	s.inFile = s.at
	return s.keep(false)
}

func (s *criSink) idle(context.Context) error { return s.flush() }

func (s *criSink) finish(context.Context) error {
	if err := s.flush(); err != nil {
		return err
	}
	return s.keep(true)
}

func (s *criSink) close() error {
	if s.file == nil {
		return nil
	}
	err := s.flush()
	if err == nil && !s.synced {
		err = s.keep(false)
	}
	err = errors.Join(err, s.file.Close())
	s.file = nil
	if errors.Is(err, os.ErrNotExist) {
		return nil // the output was removed, and the note with it
	}
	return err
}

// flush writes what was taken.
func (s *criSink) flush() error {
	if len(s.lines) == 0 {
		return nil
	}
	if err := s.checkPlace(); err != nil {
		return err
	}
	lines := s.lines
	s.lines = nil // whatever happens: who begins again finds in the file how far it came
	n, err := s.file.Write(lines)
	s.size += int64(n)
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", s.path, err), s.forget())
	}
	s.inFile = s.at
	return nil
}

// forget closes the file without a note: what is in it has to be looked at.
func (s *criSink) forget() error {
	err := s.file.Close()
	s.file = nil
	return err
}

// keep notes what is true of the present length.
func (s *criSink) keep(done bool) error {
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.path, err)
	}
	n := state{Done: done, Inode: s.inode, Length: s.size, Last: s.last}
	n.set(s.inFile)
	s.synced = true
	return s.note.save(n)
}

// rotate puts a full file aside, removes the oldest, and begins another.
func (s *criSink) rotate() error {
	if err := s.flush(); err != nil {
		return err
	}
	files, err := criFiles(filepath.Dir(s.path), s.of.Attempt)
	if err != nil {
		return err
	}
	if err := errors.Join(s.file.Sync(), os.Rename(s.path, s.path+"."+aside(files, s.last)), s.forget()); err != nil {
		return fmt.Errorf("rotate %s: %w", s.path, err)
	}
	for len(files) > s.kind.cfg.MaxFiles-1 {
		if err := os.Remove(files[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an old export: %w", err)
		}
		files = files[1:]
	}
	return s.another()
}

// checkPlace makes another file if somebody has taken this one away, and notes it if
// somebody has cut it.
func (s *criSink) checkPlace() error {
	there, err := os.Stat(s.path)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && inodeOf(there) != s.inode:
		return errors.Join(s.forget(), s.kind.ourDir(filepath.Dir(s.path)), s.another())
	case err != nil:
		return fmt.Errorf("look at %s: %w", s.path, err)
	case there.Size() != s.size:
		s.size = there.Size()
		return s.keep(false)
	}
	return nil
}
