package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/id"
)

const (
	diskB id.Disk = "01K0000000000000000000000C"
	diskC id.Disk = "01K0000000000000000000000D"
	diskD id.Disk = "01K0000000000000000000000E"
)

// wantDifferences checks what a check finds, and what became of it.
func wantDifferences(t *testing.T, s *Store, fix bool, want ...string) {
	t.Helper()
	list, _, err := s.Check(t.Context(), fix)
	must(t, err)
	var got []string
	for _, d := range list {
		word := map[Fault]string{NotMounted: "not mounted", MountLeft: "mount left", FolderLeft: "folder left", Broken: "broken"}[d.Fault]
		state := "found"
		switch {
		case d.Fixed:
			state = "fixed"
		case d.Err != nil:
			state = "kept"
		}
		got = append(got, fmt.Sprintf("%s: %s: %s", filepath.Base(d.Path), word, state))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("check with fix %t: got\n  %s\nwant\n  %s", fix, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// Each thing that can differ is found and mended, but data that nobody can tell the
// right to; what is attached, and what is of others, stays as it is.
func TestStore_CheckMendsWhatDiffers(t *testing.T) {
	s, _ := newStore(t)
	for _, uid := range []id.Disk{diskA, diskB, diskC} {
		_, err := s.Ensure(uid)
		must(t, err)
	}
	a, err := s.Attach(diskA, sandboxA, 1)
	must(t, err)
	b, err := s.Attach(diskB, sandboxB, 1)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(a.Path, "file"), []byte("kept"), 0o644))
	wantDifferences(t, s, false)

	must(t, unix.Unmount(a.Path, 0))                                                   // attached, not mounted
	left := s.mountPath(diskC)                                                         // mounted, not attached
	must(t, os.Mkdir(left, 0o711))                                                     //
	must(t, s.mounts.Bind(filepath.Join(s.folder(diskC), dataFolder), left))           //
	must(t, os.Mkdir(s.mountPath(diskD), 0o711))                                       // no volume at all
	half := filepath.Join(s.data, removing+diskD.Lower())                              // half removed
	must(t, os.MkdirAll(filepath.Join(half, dataFolder), 0o755))                       //
	old, fresh := filepath.Join(s.data, making+"1"), filepath.Join(s.data, making+"2") // half made, and in the making
	must(t, os.Mkdir(old, 0o711))
	must(t, os.Mkdir(fresh, 0o711))
	ago := time.Now().Add(-2 * makingLife)
	must(t, os.Chtimes(old, ago, ago))
	must(t, os.Mkdir(filepath.Join(s.attach, "foreign"), 0o711))
	must(t, os.Mkdir(filepath.Join(s.data, "lost+found"), 0o711))

	names := map[string]string{
		diskA.Lower(): "not mounted", diskC.Lower(): "mount left", diskD.Lower(): "folder left", removing + diskD.Lower(): "folder left", making + "1": "folder left",
	}
	for _, state := range []string{"found", "fixed"} {
		var want []string
		for name, is := range names {
			want = append(want, name+": "+is+": "+state)
		}
		wantDifferences(t, s, state == "fixed", want...)
	}
	wantDifferences(t, s, true)
	if raw, err := os.ReadFile(filepath.Join(a.Path, "file")); err != nil || string(raw) != "kept" {
		t.Errorf("mounted again, it has %q: %v", raw, err)
	}
	if !mounted(t, a.Path) || !mounted(t, b.Path) || mounted(t, left) {
		t.Error("what is attached is not mounted, or what is not is")
	}
	for _, path := range []string{fresh, filepath.Join(s.attach, "foreign"), filepath.Join(s.data, "lost+found"), s.folder(diskC)} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("it was not ours to touch: %v", err)
		}
	}
}

// A note that cannot be read is told with its reason, and neither its data nor its mount
// is touched.
func TestStore_CheckKeepsWhatIsBroken(t *testing.T) {
	s, _ := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	a, err := s.Attach(diskA, sandboxA, 1)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.folder(diskA), noteFile), []byte("{garbled"), 0o600))
	wantDifferences(t, s, true, diskA.Lower()+": broken: kept")
	list, volumes, err := s.Check(t.Context(), false)
	must(t, err)
	if volumes != 1 || len(list) != 1 || !strings.Contains(list[0].Message, noteFile+" cannot be read") {
		t.Errorf("got %d volumes and %+v, want one and why", volumes, list)
	}
	if !mounted(t, a.Path) {
		t.Error("a mount that somebody may use was taken away")
	}
}

// What others look into is not taken from them: it stays, with the reason, until they
// are done.
func TestStore_CheckLeavesABusyMount(t *testing.T) {
	s, _ := newStore(t)
	_, err := s.Ensure(diskA)
	must(t, err)
	left := s.mountPath(diskA)
	must(t, os.Mkdir(left, 0o711))
	must(t, s.mounts.Bind(filepath.Join(s.folder(diskA), dataFolder), left))
	f, err := os.Open(left)
	must(t, err)
	wantDifferences(t, s, true, diskA.Lower()+": mount left: kept")
	must(t, f.Close())
	wantDifferences(t, s, true, diskA.Lower()+": mount left: fixed")
	wantDifferences(t, s, true)
}
