package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/e2e/bed"
)

// inside is a path of the sandbox's only container, as this machine reaches it.
func (e execer) inside(path string) string {
	e.t.Helper()
	return fmt.Sprintf("/proc/%d/root%s", e.b.Workloads()[0], path)
}

// cp runs a copy.
func (e execer) cp(stdin []byte, words ...string) bed.Result {
	e.t.Helper()
	return e.b.CLIWith(bytes.NewReader(stdin), append(append([]string{}, e.before...), append([]string{"cp"}, words...)...)...)
}

// copied is cp that must do it.
func (e execer) copied(words ...string) bed.Result {
	e.t.Helper()
	r := e.cp(nil, words...)
	if r.Code != 0 {
		e.t.Errorf("cp %v: code %d, %s", words, r.Code, r.Stderr)
	}
	return r
}

// folderOf is what a folder holds: names, kinds, modes, owners, sizes and targets.
func folderOf(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		target, _ := os.Readlink(path)
		size := info.Size()
		if info.IsDir() {
			size = 0
		}
		fmt.Fprintf(&all, "%s %v %d %q\n", name, info.Mode(), size, target)
		return nil
	}))
	return all.String()
}

// Files go in and come back as they were, through a container whose image has no program for that; they
// belong to its user, or with --archive to whom they did.
func TestCopy_CarriesFilesBothWays(t *testing.T) {
	container := probe("main", "sleep")
	container.User = "1234:55"
	e := withSandbox(t, container)
	local := t.TempDir()
	at := func(name string) string { return filepath.Join(local, name) }
	must(t, os.MkdirAll(at("site/a/b"), 0o755))
	must(t, os.WriteFile(at("site/a/file"), []byte("content"), 0o640))
	must(t, os.WriteFile(at("site/large"), bytes.Repeat([]byte("0123456789abcdef"), 1<<18), 0o755))
	must(t, os.Symlink("../file", at("site/a/b/link")))
	must(t, os.Chown(at("site/a/file"), 7, 8))

	e.copied(at("site"), "box:/data") // a name that is not there yet
	e.copied(at("site"), "box:/data") // a folder that is
	e.copied("--archive", at("site"), "box:/exact")
	for path, owner := range map[string]string{"/data/a/file": "1234:55", "/data/site/a/file": "1234:55", "/exact/a/file": "7:8"} {
		info, err := os.Stat(e.inside(path))
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%d:%d", st.Uid, st.Gid); got != owner || info.Mode() != 0o640 {
			t.Errorf("%s: got %s, %v, want %s", path, got, info.Mode(), owner)
		}
	}
	e.copied("box:/exact", at("back"))
	if got, want := folderOf(t, at("back")), folderOf(t, at("site")); got != want {
		t.Errorf("came back as\n%swant\n%s", got, want)
	}
	if back, err := os.ReadFile(at("back/large")); err != nil || !bytes.Equal(back, bytes.Repeat([]byte("0123456789abcdef"), 1<<18)) {
		t.Errorf("the large file: got %d bytes, %v", len(back), err)
	}
	must(t, os.Mkdir(e.inside("/from-tar"), 0o755))
	stream := e.copied("box:/exact", "-").Stdout
	if r := e.cp([]byte(stream), "-", "box:/from-tar"); r.Code != 0 {
		t.Errorf("a tar stream: got code %d, %s", r.Code, r.Stderr)
	}
	if got, want := folderOf(t, e.inside("/from-tar/exact")), folderOf(t, at("site")); got != want {
		t.Errorf("a tar stream came in as\n%swant\n%s", got, want)
	}
	must(t, os.WriteFile(at("one"), []byte("new"), 0o600))
	e.copied(at("one"), "box:/data/a/file") // a file over a file
	e.copied("box:/data/a/file", at("site/large"))
	if got, err := os.ReadFile(at("site/large")); err != nil || string(got) != "new" {
		t.Errorf("a file over a file: got %q, %v", got, err)
	}
	for _, c := range []struct {
		words []string
		stdin string
		code  int
		says  string
	}{
		{[]string{"box:/missing", at("x")}, "", 3, "there is no /missing in the container"},
		{[]string{at("one"), "box:/missing/x"}, "", 3, "there is no /missing in the container"},
		{[]string{at("missing"), "box:/x"}, "", 3, "there is no " + at("missing")},
		{[]string{at("site"), "box:/data/a/file"}, "", 4, "a file is where a folder is to be"},
		{[]string{"-", "box:/data"}, "this is no tar stream, and is as long as a header of one has to be" + strings.Repeat(".", 512), 2, "this is no whole tar stream"},
		{[]string{"box:/dev/null", at("x")}, "", 2, "neither a file nor a folder"},
		{[]string{"box:/proc/1/status", at("x")}, "", 2, "status is a file that the kernel makes as it is read"},
		{[]string{"box:relative", at("x")}, "", 2, "absolute path"},
		{[]string{at("one"), at("x")}, "", 2, "as SANDBOX:PATH"},
		{[]string{"-c", "other", "box:/data", at("x")}, "", 3, `has no container "other"`},
	} {
		if r := e.cp([]byte(c.stdin), c.words...); r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("cp %v: got code %d, %q, want %d, %q", c.words, r.Code, r.Stderr, c.code, c.says)
		}
	}
	if _, err := os.Lstat(at("x")); !os.IsNotExist(err) {
		t.Errorf("a copy that failed left something: %v", err)
	}
	e.b.OK(append(e.before, "stop", "box")...)
	if r := e.cp(nil, "box:/data", at("x")); r.Code != 4 || !strings.Contains(r.Stderr, "its phase is STOPPED") {
		t.Errorf("of one that is stopped: got code %d, %s", r.Code, r.Stderr)
	}
}

// A container with bad intent reaches nothing of the machines at either end: not by links, not by links that
// change meanwhile, not by devices.
func TestCopy_NothingLeadsOut(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	local := t.TempDir()
	target, file := filepath.Join(local, "target"), filepath.Join(local, "file")
	must(t, os.Mkdir(target, 0o755))
	must(t, os.WriteFile(file, []byte("x"), 0o600))

	// Out: links that lead out, and devices.
	must(t, os.MkdirAll(e.inside("/trap/sub"), 0o755))
	must(t, os.Symlink(target, e.inside("/trap/absolute")))
	must(t, os.Symlink("../target", e.inside("/trap/up")))
	must(t, os.Symlink("..", e.inside("/trap/sub/within")))
	must(t, unix.Mknod(e.inside("/trap/device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mkfifo(e.inside("/trap/pipe"), 0o666))
	r := e.copied("box:/trap", filepath.Join(local, "got"))
	if !strings.Contains(r.Stderr, "left out 4:") {
		t.Errorf("got %q, want 4 left out", r.Stderr)
	}
	if got := folderOf(t, filepath.Join(local, "got")); strings.Count(got, "\n") != 3 || !strings.Contains(got, "sub/within") {
		t.Errorf("got\n%s", got)
	}

	// In: a path through a link is one of the container's own.
	must(t, os.MkdirAll(e.inside(target), 0o755))
	e.copied(file, "box:/trap/absolute/file")
	if _, err := os.Stat(e.inside(target + "/file")); err != nil {
		t.Errorf("through a link: %v", err)
	}
	must(t, os.RemoveAll(e.inside(target)))

	// In, while a folder becomes a link to one that only this machine has, and back.
	must(t, os.MkdirAll(filepath.Join(local, "race/dir"), 0o755))
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(local, fmt.Sprintf("race/dir/f%d", i)), []byte("x"), 0o600))
	}
	must(t, os.MkdirAll(e.inside("/race/dir"), 0o755))
	must(t, os.Symlink(target, e.inside("/race/link")))
	race, stop, done := e.inside("/race"), make(chan struct{}), make(chan struct{})
	go func() { // waited for below
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, race+"/dir", unix.AT_FDCWD, race+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 5 {
		e.cp(nil, filepath.Join(local, "race"), "box:/") // it may fail
		e.cp(nil, "box:/race", filepath.Join(local, "raced"))
	}
	close(stop)
	<-done
	if got := folderOf(t, target); strings.Count(got, "\n") != 1 {
		t.Errorf("on this machine there is now\n%s", got)
	}
}

// A copy that breaks leaves what was there, and one that nobody reads holds up nobody. (EXE-4, EXE-6)
func TestCopy_EXE4_ABrokenCopyReplacesNothing(t *testing.T) {
	e := withSandbox(t, probe("main", "sleep"))
	local := t.TempDir()
	large, old := filepath.Join(local, "large"), filepath.Join(local, "old")
	must(t, os.WriteFile(old, []byte("old"), 0o600))
	must(t, os.WriteFile(large, nil, 0o600))
	must(t, os.Truncate(large, 64<<30)) // of holes: more than a copy gets through meanwhile
	must(t, os.WriteFile(e.inside("/old"), []byte("old"), 0o600))
	must(t, os.WriteFile(e.inside("/large"), nil, 0o600))
	must(t, os.Truncate(e.inside("/large"), 64<<30))
	under := func(pattern string) func(context.Context) (bool, string) {
		return func(context.Context) (bool, string) {
			found, _ := filepath.Glob(pattern)
			return len(found) == 1, fmt.Sprint(found)
		}
	}
	gone := func(pattern string) func(context.Context) (bool, string) {
		return func(context.Context) (bool, string) {
			found, _ := filepath.Glob(pattern)
			return len(found) == 0, fmt.Sprint(found)
		}
	}
	begin := func(words ...string) *bed.Running {
		return e.b.Begin(append(append([]string{}, e.before...), append([]string{"cp"}, words...)...)...)
	}
	whole := func(what, path string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
			t.Errorf("%s: got %d bytes, %v, want the old file", what, len(got), err)
		}
	}

	in := begin(large, "box:/old")
	bed.Eventually(t, waitLong, "it copies", under(e.inside("/.staddle-copy-*")))
	in.Interrupt()
	if r := in.Wait(); r.Code != 128+2 {
		t.Errorf("in, interrupted: got code %d, %s", r.Code, r.Stderr)
	}
	bed.Eventually(t, waitLong, "nothing is left of it", gone(e.inside("/.staddle-copy-*")))
	whole("in, interrupted", e.inside("/old"))

	out := begin("box:/large", old)
	bed.Eventually(t, waitLong, "it copies", under(filepath.Join(local, ".staddle-copy-*")))
	e.b.Kill("sandboxhost")
	if r := out.Wait(); r.Code != 5 {
		t.Errorf("out, host killed: got code %d, %s", r.Code, r.Stderr)
	}
	whole("out, host killed", old)
	if found, _ := filepath.Glob(filepath.Join(local, ".staddle-copy-*")); len(found) > 0 {
		t.Errorf("left %v", found)
	}
	e.b.WaitReady()

	reader, writer, err := os.Pipe()
	must(t, err)
	defer reader.Close()
	unread := e.b.StartCLITo(writer, append(e.before, "cp", "box:/large", "-")...)
	must(t, writer.Close())
	_, err = reader.Read(make([]byte, 1<<10))
	must(t, err)
	began := time.Now()
	e.b.OK(append(e.before, "rm", "box")...)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("removing it took %s", took)
	}
	must(t, reader.Close())
	if err := unread.Wait(); err == nil {
		t.Error("the copy of a sandbox that was removed ended well")
	}
}
