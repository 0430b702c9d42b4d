package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

const (
	// checkPause is the time between two looks: what is in the middle of a step at the
	// first is through it at the second.
	checkPause = 500 * time.Millisecond
	// makingLife is for how long a volume may be in the making. It takes milliseconds.
	makingLife = time.Minute
)

// Fault is how what is there differs from the notes.
type Fault int

// The faults; see VolumeFault of the contract.
const (
	NotMounted Fault = iota + 1
	MountLeft
	FolderLeft
	Broken
)

// Difference is one folder or mount that is not as the notes say.
type Difference struct {
	// Fault and Path are its identity.
	Fault Fault
	Path  string
	// UID of the volume that it is of. Empty if nothing tells.
	UID id.Disk
	// Message is more about it.
	Message string
	// Fixed says that it was mended, Err why it was not. Both are unset without fix.
	Fixed bool
	Err   error
}

// found is what one look has seen.
type found struct {
	volumes []Volume
	mounts  []string            // at or below the folder of mounts
	halves  map[string]struct{} // folders of volumes half made or half removed
	places  []string            // folders in the folder of mounts
}

// Check compares the notes with folders and mounts, and with fix mends what differs.
// See CheckVolumes of the contract. It returns how many volumes were compared.
func (s *Store) Check(ctx context.Context, fix bool) ([]Difference, int, error) {
	before, _, err := s.look()
	if err != nil {
		return nil, 0, err
	}
	if err := backoff.Wait(ctx, checkPause); err != nil {
		return nil, 0, err
	}
	after, volumes, err := s.look()
	if err != nil {
		return nil, 0, err
	}
	both := slices.DeleteFunc(after, func(d Difference) bool {
		return !slices.ContainsFunc(before, func(b Difference) bool { return b.Fault == d.Fault && b.Path == d.Path })
	})
	if !fix {
		return both, volumes, nil
	}
	for i := range both {
		d := &both[i]
		if d.Err = s.mend(*d); d.Err == nil {
			d.Fixed = true
			s.log.Warn("volumes mended", d.UID.Attr(), logging.Path(d.Path))
		}
	}
	return both, volumes, nil
}

// look takes stock once and compares.
func (s *Store) look() ([]Difference, int, error) {
	var f found
	var err error
	if f.volumes, err = s.List(); err != nil {
		return nil, 0, err
	}
	if f.mounts, err = s.mounts.Below(s.attach); err != nil {
		return nil, 0, fault.New(fault.Unavailable, "list mounts of volumes: %w", err)
	}
	if f.halves, err = s.halves(time.Now()); err != nil {
		return nil, 0, err
	}
	entries, err := os.ReadDir(s.attach)
	if err != nil {
		return nil, 0, fault.New(fault.Unavailable, "list places of mounts: %w", err)
	}
	for _, e := range entries {
		f.places = append(f.places, filepath.Join(s.attach, e.Name()))
	}
	return s.differences(f), len(f.volumes), nil
}

// halves lists folders of volumes that are being removed, or were in the making for
// longer than any is.
func (s *Store) halves(now time.Time) (map[string]struct{}, error) {
	entries, err := os.ReadDir(s.data)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "list volumes: %w", err)
	}
	halves := map[string]struct{}{}
	for _, e := range entries {
		old := strings.HasPrefix(e.Name(), removing)
		if strings.HasPrefix(e.Name(), making) {
			info, err := e.Info()
			old = err == nil && now.Sub(info.ModTime()) > makingLife
		}
		if old {
			halves[filepath.Join(s.data, e.Name())] = struct{}{}
		}
	}
	return halves, nil
}

// differences decides what is not as the notes say; it looks at nothing.
func (s *Store) differences(f found) []Difference {
	var all []Difference
	mounted, wanted := map[string]bool{}, map[string]bool{}
	for _, path := range f.mounts {
		mounted[path] = true
	}
	for _, v := range f.volumes {
		path := s.mountPath(v.UID)
		switch {
		case v.Broken != "": // it may be attached: nobody knows
			wanted[path] = true
			all = append(all, Difference{Fault: Broken, Path: s.folder(v.UID), UID: v.UID, Message: v.Broken})
		case v.Path != "":
			wanted[path] = true
			if !mounted[path] {
				all = append(all, Difference{Fault: NotMounted, Path: path, UID: v.UID, Message: fmt.Sprintf("sandbox %s has it", v.Holder)})
			}
		}
	}
	for path := range f.halves {
		all = append(all, Difference{Fault: FolderLeft, Path: path, UID: uidIn(strings.TrimPrefix(filepath.Base(path), removing))})
	}
	for _, path := range f.places {
		switch {
		case wanted[path]:
		case mounted[path]:
			all = append(all, Difference{Fault: MountLeft, Path: path, UID: uidIn(filepath.Base(path))})
		case uidIn(filepath.Base(path)) != "": // an empty folder of ours
			all = append(all, Difference{Fault: FolderLeft, Path: path, UID: uidIn(filepath.Base(path))})
		}
	}
	slices.SortFunc(all, func(a, b Difference) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Fault, b.Fault)) })
	return all
}

// uidIn is the uid that a name in our folders stands for, empty if for none.
func uidIn(name string) id.Disk {
	uid := id.Disk(strings.ToUpper(name))
	if id.CheckUID(string(uid)) != nil || name != uid.Lower() {
		return ""
	}
	return uid
}

// mend makes one difference go, if it is still one once nobody else is at the volume.
func (s *Store) mend(d Difference) error {
	if d.Fault == Broken {
		return fault.New(fault.Conflict, "nobody knows what its note has said; its data is kept")
	}
	if d.UID == "" {
		return s.clear(d)
	}
	unlock, err := s.lock(d.UID)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := s.read(d.UID)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	switch {
	case d.Fault == NotMounted && v.Path != "":
		return s.mount(d.UID)
	case d.Fault == NotMounted, d.Path == v.Path: // it was given back, or attached, meanwhile
		return nil
	}
	return s.clear(d)
}

// clear removes what is left over. Data is removed only from folders that are no
// volume's any more.
func (s *Store) clear(d Difference) error {
	if filepath.Dir(d.Path) == s.data {
		return s.removeTree(d.Path)
	}
	if d.Fault == MountLeft {
		if err := s.mounts.Unbind(d.Path); err != nil {
			return fault.New(fault.Unavailable, "%w", err)
		}
		if d.UID == "" {
			return nil // the folder is somebody else's
		}
	}
	if err := os.Remove(d.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unavailable, "%w", err)
	}
	return nil
}
