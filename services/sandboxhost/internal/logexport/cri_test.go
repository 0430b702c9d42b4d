package logexport

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/logs"
)

func (p *place) cri(dir string, size int64, files int) *Export {
	return NewCRI(CRI{Dir: dir, Notes: filepath.Join(p.dir, "notes"), MaxSize: size, MaxFiles: files}, p.deps())
}

func (p *place) criDir() string { return filepath.Join(p.dir, "cri") }

// attemptFiles are the files of an attempt, the oldest first.
func attemptFiles(t *testing.T, dir string, w *workload) []string {
	t.Helper()
	files, err := criFiles(filepath.Join(dir, "local_web_"+w.of.UID.Lower(), "main"), w.of.Attempt)
	must(t, err)
	return files
}

// content is all of the files, one behind the other.
func content(t *testing.T, files []string) string {
	t.Helper()
	var all strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		must(t, err)
		all.Write(raw)
	}
	return all.String()
}

// rejoined is what records say that was written to both streams. It demands the format.
func rejoined(t *testing.T, text string) (out [2]string) {
	t.Helper()
	var last time.Time
	for line := range strings.Lines(text) {
		stderr, n, at, ok := parseCRI([]byte(strings.TrimSuffix(line, "\n")))
		if !ok || !strings.HasSuffix(line, "\n") || at.IsZero() || at.Before(last) {
			t.Fatalf("no record, or one out of turn: %.120q", line)
		}
		last = at
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(part[3]) > criLine || utf8.ValidString(text) && !utf8.ValidString(part[3]) {
			t.Errorf("a record of %d bytes, cut within a character: %v", n, !utf8.ValidString(part[3]))
		}
		out[of(stderr)] += part[3]
		if part[2] == "F" {
			out[of(stderr)] += "\n"
		}
	}
	return out
}

// oddTexts have lines of odd lengths, characters of several bytes, and no end.
func oddTexts() [2]string {
	var a, b strings.Builder
	for _, n := range []int{0, 1, 16_380, 16_383, 16_384, 16_385, 32_767, 32_768, 32_769, 100_000} {
		a.WriteString(strings.Repeat("x", n%4) + strings.Repeat("\U0001F600", n/4) + "\n")
		b.WriteString(strings.Repeat("é", n/7) + "\r\n")
	}
	return [2]string{a.String() + "no end", b.String()}
}

func TestCRI_HasWhatWasWritten(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(3)
	stop := run(t, p.cri(p.criDir(), 1<<30, 2))
	want := oddTexts()
	var written [2]string
	for len(want[0])+len(want[1]) > 0 {
		for i := range want {
			n := min(len(want[i]), 7_001)
			w.write(i, want[i][:n])
			written[i] += want[i][:n]
			want[i] = want[i][n:]
			eventually(t, "room in the pipe", func() (bool, string) { return kept(t, w) >= len(written[0])+len(written[1]), "" })
		}
	}
	w.end()
	eventually(t, "all is exported", func() (bool, string) {
		got := rejoined(t, whole(content(t, attemptFiles(t, p.criDir(), w))))
		return got == written, sprint(len(got[0]), len(got[1]), len(written[0]), len(written[1]))
	})
	for path, mode := range map[string]os.FileMode{"": folderMode, "main": folderMode, "main/3.log": fileMode} {
		info, err := os.Stat(filepath.Join(p.criDir(), "local_web_"+w.of.UID.Lower(), path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: got %v, %v, want %v", path, info, err, mode)
		}
	}
	stop()
	must(t, p.store.Close())
	p.open(1 << 30)
	stop = run(t, p.cri(p.criDir(), 1<<30, 2)) // the next process finds nothing to do
	must(t, p.store.Remove(w.of.UID, webName))
	p.tend()
	eventually(t, "it goes with the sandbox", func() (bool, string) {
		left, err := os.ReadDir(p.criDir())
		notes, errNotes := os.ReadDir(filepath.Join(p.dir, "notes"))
		return err == nil && errNotes == nil && len(left)+len(notes) == 0, sprint(left, err, notes, errNotes)
	})
	stop()
}

// whole leaves out what was not written to its end yet.
func whole(text string) string { return text[:strings.LastIndexByte(text, '\n')+1] }

// kept is how much of an attempt is in segments.
func kept(t *testing.T, w *workload) int {
	n := 0
	err := w.p.store.Read(t.Context(), position(w.of, offsets{}), logs.Mode{Tail: -1}, func(c logs.Chunk) error {
		n += len(c.Data)
		return nil
	})
	must(t, err)
	return n
}

// A process that is killed may have written any part of what it had to. Whatever that
// is, the next one goes on behind it, and takes nothing back that was there.
func TestCRI_GoesOnBehindWhateverWasWritten(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(1)
	w.write(0, "first\nsecond, é\n\nno end")
	w.write(1, "one\n\U0001F600 two\n")
	eventually(t, "it is kept", func() (bool, string) { return kept(t, w) == 37, sprint(kept(t, w)) })
	stop := run(t, p.cri(p.criDir(), 1<<20, 2))
	note := filepath.Join(p.store.AttemptDir(w.of), "cri.json")
	var begun []byte
	eventually(t, "the note of the beginning", func() (bool, string) {
		raw, err := os.ReadFile(note)
		begun = raw
		return err == nil, sprint(err)
	})
	if !bytes.Contains(begun, []byte(`"stdout":0,"stderr":0`)) {
		t.Fatalf("the note of the beginning is %s", begun)
	}
	w.end()
	eventually(t, "all is exported", func() (bool, string) {
		files := attemptFiles(t, p.criDir(), w)
		return len(files) == 1 && strings.HasSuffix(content(t, files), "stdout P no end\n"), content(t, files)
	})
	stop()
	file := attemptFiles(t, p.criDir(), w)[0]
	want := content(t, []string{file})
	for n := 0; n <= len(want); n++ {
		must(t, os.Truncate(file, 0))
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString(want[:n])
		must(t, err)
		must(t, f.Close())
		must(t, os.WriteFile(note, begun, 0o600))
		e := p.cri(p.criDir(), 1<<20, 2)
		s := e.kind.open(w.of).(*criSink)
		if _, _, err := s.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := content(t, []string{file}); !strings.HasPrefix(got, want[:n]) && n > 45 {
			t.Errorf("after %d bytes %q was taken back: %q", n, want[:n], got)
		}
		must(t, s.close())
		must(t, e.follow(t.Context(), w.of))
		if got := rejoined(t, content(t, []string{file})); got != [2]string{"first\nsecond, é\n\nno end", "one\n\U0001F600 two\n"} {
			t.Fatalf("after %d bytes: %q", n, got)
		}
	}
}

// Files are put aside when they are full, the oldest go, and whoever is killed between any
// two steps of that goes on without a loss.
func TestCRI_Rotates(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(1)
	var want string
	for i := range 400 {
		line := strings.Repeat("y", i%200) + "\n"
		w.write(0, line)
		want += line
	}
	w.end()
	e := p.cri(p.criDir(), 8<<10, 100)
	must(t, e.follow(t.Context(), w.of))
	files := attemptFiles(t, p.criDir(), w)
	if got := rejoined(t, content(t, files)); got[0] != want || len(files) < 5 {
		t.Fatalf("in %d files %d bytes, want %d", len(files), len(got[0]), len(want))
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 8<<10 {
			t.Errorf("%s: %v, %v", f, info, err)
		}
	}
	few := filepath.Join(p.dir, "few")
	must(t, os.Remove(filepath.Join(p.store.AttemptDir(w.of), "cri.json")))
	must(t, p.cri(few, 8<<10, 3).follow(t.Context(), w.of))
	newest := attemptFiles(t, few, w)
	if got := rejoined(t, content(t, newest)); len(newest) != 3 || !strings.HasSuffix(want, got[0]) {
		t.Errorf("of 3 files are %v with %d bytes that end otherwise", newest, len(got[0]))
	}
	// Killed after the file was put aside, and after the next one was made.
	for _, next := range []bool{false, true} {
		dir := filepath.Join(p.dir, "killed"+sprint(next))
		must(t, os.Remove(filepath.Join(p.store.AttemptDir(w.of), "cri.json")))
		s := p.cri(dir, 1<<20, 9).kind.open(w.of).(*criSink)
		_, _, err := s.begin(t.Context())
		must(t, err)
		must(t, s.take(t.Context(), record{text: []byte(""), whole: true, at: time.Now()}))
		must(t, s.take(t.Context(), record{offset: 1, text: []byte("y"), whole: true, at: time.Now()}))
		must(t, s.flush())
		must(t, os.Rename(s.path, s.path+".20260101-000000"))
		if next {
			must(t, os.WriteFile(s.path, nil, 0o600))
		}
		must(t, s.forget())
		must(t, p.cri(dir, 1<<20, 9).follow(t.Context(), w.of))
		if got := rejoined(t, content(t, attemptFiles(t, dir, w))); got[0] != want {
			t.Errorf("killed while it was put aside (next is there: %v): %d bytes, want %d", next, len(got[0]), len(want))
		}
	}
}

// A full disk makes the export late, and nothing else.
func TestCRI_WaitsForRoom(t *testing.T) {
	p := newPlace(t, 16<<20)
	must(t, os.Mkdir(p.criDir(), 0o700))
	must(t, unix.Mount("tmpfs", p.criDir(), "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(t, unix.Unmount(p.criDir(), unix.MNT_DETACH)) })
	blocker := filepath.Join(p.criDir(), "blocker")
	must(t, os.WriteFile(blocker, make([]byte, 40<<10), 0o600))
	stop := run(t, p.cri(p.criDir(), 1<<20, 2))
	w := p.workload(1)
	var want string
	for range 400 {
		line := strings.Repeat("z", 99) + "\n"
		w.write(0, line)
		want += line
	}
	w.end() // it does not wait for the export
	eventually(t, "the export stands", func() (bool, string) {
		got := content(t, attemptFiles(t, p.criDir(), w))
		return len(got) > 8<<10, sprint(len(got))
	})
	must(t, os.Remove(blocker))
	eventually(t, "all is exported", func() (bool, string) {
		got := rejoined(t, whole(content(t, attemptFiles(t, p.criDir(), w))))
		return got[0] == want, sprint(len(got[0]))
	})
	stop()
}

// What the source does not have any more is counted, and the rest is exported.
func TestCRI_CountsWhatIsGone(t *testing.T) {
	p := newPlace(t, 64<<10)
	w := p.workload(1)
	line := strings.Repeat("z", 99) + "\n"
	for i := range 3_000 {
		w.write(0, line)
		if i%100 == 99 {
			eventually(t, "it is taken", func() (bool, string) { return behind(t, w) == int64(i+1)*100, "" })
		}
	}
	w.end()
	e := p.cri(p.criDir(), 1<<30, 2)
	must(t, e.follow(t.Context(), w.of))
	got := rejoined(t, content(t, attemptFiles(t, p.criDir(), w)))
	if e.Lost() == 0 || int64(len(got[0]))+e.Lost() != 300_000 {
		t.Errorf("exported %d and counted %d as lost, of 300000", len(got[0]), e.Lost())
	}
}

// behind is the offset behind the newest byte of standard output.
func behind(t *testing.T, w *workload) (last int64) {
	at := position(w.of, offsets{})
	at.Stderr = false
	must(t, w.p.store.Read(t.Context(), at, logs.Mode{Tail: 0}, func(c logs.Chunk) error {
		last = c.Offset
		return nil
	}))
	return last
}

// Somebody who takes the file away gets another one, and who cuts it harms nobody.
func TestCRI_GoesOnInAnotherFile(t *testing.T) {
	p := newPlace(t, 16<<20)
	w := p.workload(1)
	stop := run(t, p.cri(p.criDir(), 1<<20, 5))
	defer func() { stop() }()
	shows := func(want string) {
		t.Helper()
		eventually(t, want+" is exported", func() (bool, string) {
			got := content(t, attemptFiles(t, p.criDir(), w))
			return strings.Count(got, "\n") == 1 && strings.HasSuffix(got, " stdout F "+want+"\n"), got
		})
	}
	w.write(0, "a\n")
	shows("a")
	file := attemptFiles(t, p.criDir(), w)[0]
	must(t, os.Rename(file, filepath.Join(p.dir, "taken")))
	w.write(0, "b\n")
	shows("b")
	must(t, os.Truncate(file, 0))
	w.write(0, "c\n")
	shows("c")
	stop()
	stop = run(t, p.cri(p.criDir(), 1<<20, 5))
	w.write(0, "d\n")
	eventually(t, "d is exported once", func() (bool, string) {
		got := content(t, []string{file})
		return strings.Count(got, "\n") == 2 && strings.HasSuffix(got, " stdout F d\n"), got
	})
	w.end()
}

// What was exported of sandboxes that went while nobody looked is removed, and nothing else.
func TestCRI_SweepsWhatIsOurs(t *testing.T) {
	p := newPlace(t, 1<<20)
	gone := id.NewSandbox()
	e := p.cri(p.criDir(), 1<<20, 5)
	folder, err := e.kind.(*criKind).folder(gone)
	must(t, err)
	foreign := filepath.Join(p.criDir(), "local_web_"+id.NewSandbox().Lower())
	for _, dir := range []string{folder, foreign} {
		must(t, os.MkdirAll(dir, 0o700))
	}
	run(t, e)()
	left, err := os.ReadDir(p.criDir())
	must(t, err)
	if !slices.ContainsFunc(left, func(d os.DirEntry) bool { return d.Name() == filepath.Base(foreign) }) || len(left) != 1 {
		t.Errorf("left are %v", left)
	}
}
