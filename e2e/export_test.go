package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"staddle.internal/e2e/bed"
)

// criText is what files in the format of CRI hold of standard output, the oldest first.
// What a record lacks or has too much is an error.
func criText(t *testing.T, pattern string) (text string, files []string) {
	t.Helper()
	files, err := filepath.Glob(pattern + ".*")
	must(t, err)
	slices.Sort(files)
	files = append(files, pattern)
	var all strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return "", nil // it is being put aside
		}
		for line := range strings.Lines(string(raw)) {
			part := strings.SplitN(line, " ", 4)
			if len(part) != 4 || !strings.HasSuffix(line, "\n") {
				return "", nil // it is being written
			}
			if _, err := time.Parse(time.RFC3339Nano, part[0]); err != nil || part[1] != "stdout" || part[2] != "F" {
				t.Fatalf("%s has the record %.120q", f, line)
			}
			all.WriteString(part[3])
		}
	}
	return all.String(), files
}

// Shippers for Kubernetes find what workloads write, each line once, over kills of the
// host and full files; they may read it, and nobody else.
func TestLogs_LOG5_FilesInTheFormatOfCRI(t *testing.T) {
	const lines, rounds, group = 300, 100, 4321
	dir := filepath.Join(t.TempDir(), "pods")
	must(t, os.Mkdir(dir, 0o750))
	must(t, os.Chown(dir, -1, group))
	b, _ := alone(t, bed.Options{Node: fmt.Sprintf("logs: {keep_removed: 0s, cri: {directory: %s, max_size: 512KiB, max_files: 20}}", dir)})
	uid := ensure(t, b, "web", spec(never, probe("main", "bursts", fmt.Sprint(lines), "30ms", fmt.Sprint(rounds))))
	folder := filepath.Join(dir, "local_web_"+strings.ToLower(uid))
	file := filepath.Join(folder, "main", "1.log")
	far := func(n int) {
		t.Helper()
		bed.Eventually(t, time.Minute, fmt.Sprintf("%d lines are exported", n), func(context.Context) (bool, string) {
			text, _ := criText(t, file)
			return strings.Count(text, "\n") >= n, fmt.Sprint(strings.Count(text, "\n"))
		})
	}
	for i := range 5 {
		far((i + 1) * lines * rounds / 8)
		b.Kill("sandboxhost")
		b.WaitReady()
	}
	far(lines*rounds + 3)
	text, files := criText(t, file)
	numberedFrom(t, "the files", text, 0)
	if len(files) < 4 {
		t.Errorf("only %v: no file was ever full", files)
	}
	for _, path := range append(files, folder, filepath.Dir(file)) {
		info, err := os.Stat(path)
		must(t, err)
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || owner.Gid != group || info.Mode().Perm()&0o007 != 0 || info.Mode().Perm()&0o040 == 0 {
			t.Errorf("%s has mode %v and group %d", path, info.Mode(), owner.Gid)
		}
	}
	remove(t, b, uid)
	bed.Eventually(t, waitLong, "the files go with the sandbox", func(context.Context) (bool, string) {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0, fmt.Sprint(left, err)
	})
	settled(t, b)
}

// What was written is read back from the files as it was, however long its lines are: those that
// are cut say so, and are never cut within a character. (LOG-3)
func TestLogs_LOG3_ExportedAsTheyWere(t *testing.T) {
	dir := t.TempDir()
	b, _ := alone(t, bed.Options{Node: fmt.Sprintf("logs: {cri: {directory: %s}}", dir)})
	uid := ensure(t, b, "web", spec(never, probe("main", "odd")))
	await(t, b, uid, "ended", ended)
	wantOut, wantErr := oddText()
	file := filepath.Join(dir, "local_web_"+strings.ToLower(uid), "main", "1.log")
	bed.Eventually(t, waitLong, "all is exported", func(context.Context) (bool, string) {
		raw, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		var stdout, stderr strings.Builder
		for line := range strings.Lines(string(raw)) {
			part := strings.SplitN(line, " ", 4)
			if len(part) != 4 || !strings.HasSuffix(line, "\n") || part[2] != "F" && part[2] != "P" {
				return false, fmt.Sprintf("the record %.120q", line)
			}
			text := part[3]
			if part[2] == "P" {
				text = strings.TrimSuffix(text, "\n")
			}
			if len(text) > 16<<10+1 || !utf8.ValidString(text) {
				t.Fatalf("the record of %d bytes ends with %q", len(text), text[max(0, len(text)-8):])
			}
			stream := map[string]*strings.Builder{"stdout": &stdout, "stderr": &stderr}[part[1]]
			if stream == nil {
				t.Fatalf("the record %.120q", line)
			}
			stream.WriteString(text)
		}
		return stdout.String() == wantOut && stderr.String() == wantErr,
			fmt.Sprintf("%d and %d bytes, want %d and %d", stdout.Len(), stderr.Len(), len(wantOut), len(wantErr))
	})
	remove(t, b, uid)
	settled(t, b)
}
