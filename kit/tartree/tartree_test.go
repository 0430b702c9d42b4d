package tartree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/tartree"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func root(t *testing.T, dir string) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(dir)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// listing is all that is below a folder: each name with its kind, mode and content.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch info.Mode().Type() {
		case 0:
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(raw)
		case os.ModeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&all, "%s %v %q\n", name, info.Mode(), content)
		return nil
	}))
	return all.String()
}

// tree makes some of everything.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/file"), []byte("content"), 0o640))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/empty"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat([]byte("0123456789"), 30_000), 0o755))
	must(t, os.Symlink("../file", filepath.Join(dir, "a/b/link")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "a/b"), 0o500))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "a/b"), 0o700) })
	must(t, os.Chtimes(filepath.Join(dir, "a/b"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	return dir
}

// place opens something for nothing but to be looked at.
func place(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func pack(t *testing.T, dir, top string) ([]byte, tartree.Report) {
	t.Helper()
	var out bytes.Buffer
	report, err := tartree.Pack(t.Context(), &out, top, place(t, dir), tartree.PackOptions{})
	must(t, err)
	return out.Bytes(), report
}

func TestTree_ComesBackAsItWas(t *testing.T) {
	from, to := tree(t), t.TempDir()
	stream, packed := pack(t, from, "top")
	if want := (tartree.Report{Entries: 8, Bytes: 300_007, Skipped: 1}); packed != want {
		t.Errorf("packed %+v, want %+v", packed, want)
	}
	moved := 0
	got, err := tartree.Unpack(t.Context(), bytes.NewReader(stream), root(t, to), tartree.UnpackOptions{
		Top: "top", As: "new", Exact: true, Times: true, Moved: func(n int) { moved += n },
	})
	if err != nil || got.Entries != packed.Entries || got.Bytes != packed.Bytes || got.Skipped != 0 || moved != int(packed.Bytes) {
		t.Errorf("unpacked %+v, moved %d, %v, want %+v", got, moved, err, packed)
	}
	must(t, os.Remove(filepath.Join(from, "pipe")))
	if got, want := listing(t, filepath.Join(to, "new")), listing(t, from); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	info, err := os.Stat(filepath.Join(to, "new/a/b"))
	must(t, err)
	if !info.ModTime().Equal(time.Unix(1e9, 0)) {
		t.Errorf("the folder has time %v", info.ModTime())
	}
	must(t, os.Chmod(filepath.Join(to, "new/a/b"), 0o700)) // so that it can be removed
}

// entry is one of a stream that somebody made by hand.
type entry struct {
	name string
	kind byte
	link string
	body string
}

func stream(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		must(t, w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o644, Size: int64(len(e.body))}))
		_, err := io.WriteString(w, e.body)
		must(t, err)
	}
	must(t, w.Close())
	return &out
}

// Whatever a stream says, nothing changes outside of the folder, and with Inward no link is made that leads out of the
// entry that was asked for.
func TestUnpack_NothingLeadsOut(t *testing.T) {
	const reg, dir, sym, hard = tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	for name, entries := range map[string][]entry{
		"up":                             {{"top/../../evil", reg, "", "x"}},
		"up at the end":                  {{"top/..", dir, "", ""}},
		"absolute":                       {{"/evil", reg, "", "x"}},
		"another name":                   {{"outside", reg, "", "x"}},
		"a name that begins alike":       {{"top2", reg, "", "x"}},
		"no name":                        {{"./", dir, "", ""}},
		"through an absolute link":       {{"top/", dir, "", ""}, {"top/l", sym, "OUT", ""}, {"top/l/evil", reg, "", "x"}},
		"through a relative link":        {{"top/", dir, "", ""}, {"top/l", sym, "../../out", ""}, {"top/l/evil", reg, "", "x"}},
		"over a link":                    {{"top/", dir, "", ""}, {"top/l", sym, "../../out/kept", ""}, {"top/l", reg, "", "x"}},
		"a hard link to outside":         {{"top/", dir, "", ""}, {"top/l", hard, "../out/kept", ""}},
		"a hard link through a link":     {{"top/", dir, "", ""}, {"top/l", sym, "../../out", ""}, {"top/h", hard, "top/l/kept", ""}},
		"a hard link to a link":          {{"top/a/", dir, "", ""}, {"top/a/l", sym, "../x", ""}, {"top/a/b/", dir, "", ""}, {"top/a/b/l", sym, "../../../out", ""}, {"top/h", hard, "top/a/l", ""}},
		"through a link to itself":       {{"top/", dir, "", ""}, {"top/l", sym, ".", ""}, {"top/l/m", sym, "../../out", ""}, {"top/m/evil", reg, "", "x"}},
		"top is a link":                  {{"top", sym, "out", ""}, {"top/evil", reg, "", "x"}},
		"top is an absolute link":        {{"top", sym, "OUT", ""}, {"top/evil", reg, "", "x"}},
		"a device, a pipe":               {{"top/", dir, "", ""}, {"top/null", tar.TypeChar, "", ""}, {"top/block", tar.TypeBlock, "", ""}, {"top/pipe", tar.TypeFifo, "", ""}},
		"a folder in the place of links": {{"top/", dir, "", ""}, {"top/l", sym, "../../out", ""}, {"top/l", dir, "", ""}, {"top/l/evil", reg, "", "x"}},
	} {
		for _, inward := range []bool{true, false} {
			base := t.TempDir()
			must(t, os.Mkdir(filepath.Join(base, "to"), 0o755))
			must(t, os.Mkdir(filepath.Join(base, "out"), 0o755))
			must(t, os.WriteFile(filepath.Join(base, "out/kept"), []byte("kept"), 0o600))
			for i := range entries {
				if entries[i].link == "OUT" {
					entries[i].link = filepath.Join(base, "out")
				}
			}
			before := listing(t, filepath.Join(base, "out"))
			_, err := tartree.Unpack(t.Context(), stream(t, entries...), root(t, filepath.Join(base, "to")),
				tartree.UnpackOptions{Top: "top", Inward: inward, Exact: true})
			if after := listing(t, filepath.Join(base, "out")); after != before {
				t.Errorf("%s, inward %t: outside is now\n%s (%v)", name, inward, after, err)
			}
			outside, globErr := filepath.Glob(filepath.Join(base, "*"))
			must(t, globErr)
			for _, l := range strings.Split(listing(t, filepath.Join(base, "to")), "\n") {
				if strings.Contains(l, ".staddle-copy") || strings.Contains(l, " D") || strings.Contains(l, " p") {
					t.Errorf("%s: left %q", name, l)
				}
			}
			if len(outside) != 2 {
				t.Errorf("%s: beside it is %v", name, outside)
			}
			must(t, filepath.WalkDir(filepath.Join(base, "to"), func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.Type()&os.ModeSymlink == 0 || !inward {
					return err
				}
				target, err := os.Readlink(path)
				if err != nil {
					return err
				}
				full := filepath.Clean(filepath.Join(filepath.Dir(path), target))
				if filepath.IsAbs(target) || !strings.HasPrefix(full+"/", filepath.Join(base, "to/top")+"/") {
					t.Errorf("%s: link %s leads to %s", name, path, target)
				}
				return nil
			}))
		}
	}
}

// A file is replaced by a whole one or not at all, whether the stream breaks or the copy is called off.
func TestUnpack_AHalfFileReplacesNone(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(from, "file"), bytes.Repeat([]byte("new"), 50_000), 0o600))
	must(t, os.WriteFile(filepath.Join(to, "file"), []byte("old"), 0o600))
	whole, _ := pack(t, from, ".")
	before := listing(t, to)
	for cut := 0; cut < 150_000; cut += 5_000 {
		broken := errors.New("broken off")
		_, err := tartree.Unpack(t.Context(), io.MultiReader(bytes.NewReader(whole[:cut]), failing{broken}), root(t, to), tartree.UnpackOptions{})
		if !errors.Is(err, broken) {
			t.Errorf("cut at %d: got %v", cut, err)
		}
		if after := listing(t, to); after != before {
			t.Fatalf("cut at %d: got\n%s", cut, after)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	called := errors.New("called off")
	_, err := tartree.Unpack(ctx, bytes.NewReader(whole), root(t, to), tartree.UnpackOptions{Moved: func(int) { cancel(called) }})
	if !errors.Is(err, called) || listing(t, to) != before {
		t.Errorf("called off: got %v and\n%s", err, listing(t, to))
	}
	_, err = tartree.Unpack(t.Context(), bytes.NewReader(whole[:100_000]), root(t, to), tartree.UnpackOptions{})
	if !errors.Is(err, fault.Invalid) || listing(t, to) != before {
		t.Errorf("half a stream: got %v and\n%s", err, listing(t, to))
	}
	if _, err := tartree.Unpack(t.Context(), bytes.NewReader(whole), root(t, to), tartree.UnpackOptions{}); err != nil || listing(t, to) == before {
		t.Errorf("the whole one: got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Files of the kernel's own look empty before they are read: they are left out, never copied as empty.
func TestPack_LeavesOutWhatTheKernelMakes(t *testing.T) {
	var out bytes.Buffer
	if report, err := tartree.Pack(t.Context(), &out, "fs", place(t, "/proc/sys/fs"), tartree.PackOptions{}); err != nil || report != (tartree.Report{Skipped: 1}) {
		t.Errorf("got %+v, %v", report, err)
	}
	if _, err := tartree.Pack(t.Context(), &out, "status", place(t, "/proc/self/status"), tartree.PackOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
}

// A folder is bounded in its depth, and a file that gets shorter is no whole one.
func TestPack_IsBounded(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range 140 {
		deep = filepath.Join(deep, "d")
	}
	must(t, os.MkdirAll(deep, 0o755))
	if _, err := tartree.Pack(t.Context(), io.Discard, "top", place(t, dir), tartree.PackOptions{}); !errors.Is(err, fault.Invalid) {
		t.Errorf("deep: got %v", err)
	}
	flat := t.TempDir()
	path := filepath.Join(flat, "file")
	must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	_, err := tartree.Pack(t.Context(), io.Discard, "top", place(t, flat), tartree.PackOptions{Moved: func(int) { must(t, os.Truncate(path, 10)) }})
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("shorter: got %v", err)
	}
}

// What is packed begins with the last element of its path, where that is a name.
func TestTopOf(t *testing.T) {
	for path, want := range map[string]string{"/": ".", "/etc": "etc", "/etc/": "etc", "/a/b/..": ".", "/a/.": "."} {
		if got := tartree.TopOf(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
