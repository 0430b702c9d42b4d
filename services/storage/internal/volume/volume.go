// Package volume owns the volumes of this node: one folder for each, with its
// data and a note about who may use it, and the mount through which it is used.
//
// A volume is attached for one holder under one epoch at a time. The note is
// made durable before the mount, and emptied after the unmount, so that after any
// crash it errs on the side of "in use". A note that cannot be read makes the
// volume broken, never empty: its data stays.
//
// It must never watch desired state or know what a sandbox does. In the trail of
// a disk it is the step after the API: records, agent, api, volume.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// The reasons for machines of this package's errors.
const (
	ReasonStaleEpoch = "STALE_EPOCH"
	ReasonInUse      = "IN_USE"
	ReasonBroken     = "VOLUME_BROKEN"
	// ReasonOtherHolder is for a right that is not the one it is attached under.
	ReasonOtherHolder = "OTHER_HOLDER"
)

// Volume is one volume as it is found.
type Volume struct {
	// UID of the disk that it is.
	UID id.Disk
	// Broken says why it cannot be used. Empty for a good one.
	Broken string
	// Holder is the sandbox that it is attached for. Empty while it is not.
	Holder id.Sandbox
	// Epoch is the highest that was seen.
	Epoch uint64
	// Parked is true while it is unmounted and stays its holder's.
	Parked bool
	// Path is where it is mounted. Empty while it is not.
	Path string
	// CreatedAt is when it was made.
	CreatedAt time.Time
}

// mounts are the effects on the kernel's mount table.
type mounts interface {
	// Bind mounts the folder from on the folder to; already so is success.
	Bind(from, to string) error
	// Unbind unmounts what is mounted on the folder; nothing is success.
	Unbind(path string) error
	// Below lists what is mounted at or below a folder.
	Below(path string) ([]string, error)
}

// Store keeps the volumes below two folders.
type Store struct {
	data   string // durable: one folder per volume
	attach string // of this boot: one mount per attached volume
	mounts mounts
	log    *slog.Logger

	mu    sync.Mutex                // guards locks
	locks map[id.Disk]chan struct{} // each has room for who holds it
}

// New makes a store. It touches nothing before Recover.
func New(data, attach string, m mounts, log *slog.Logger) *Store {
	return &Store{data: data, attach: attach, mounts: m, log: log, locks: map[id.Disk]chan struct{}{}}
}

// Recover makes mounts agree with notes after a start: what is attached by its
// note is mounted, what is mounted otherwise is unmounted, a removal that was cut
// off is finished. It fails when a question could not be answered or a mount could
// not be changed: who started now would use an empty folder in its place. A volume
// that is broken is kept as it is, and shown.
func (s *Store) Recover(context.Context) error {
	// Closed to other users of the machine: the data below lets every user write, as
	// it must for those inside a sandbox.
	for _, dir := range []string{s.data, s.attach} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return fmt.Errorf("recover volumes: %w", err)
		}
	}
	if err := s.finishRemovals(); err != nil {
		return err
	}
	volumes, err := s.List()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, v := range volumes {
		if v.Broken != "" { // it may be attached: nobody knows
			wanted[s.mountPath(v.UID)] = true
		}
		if v.Holder == "" {
			continue
		}
		if v.Parked {
			stale, err := s.mounted(v.UID)
			if err != nil {
				return fmt.Errorf("recover volume %s: %w", v.UID, err)
			}
			if !stale {
				continue
			}
			// A release that does not know of parking has mounted it again since.
			if err := s.unpark(v.UID); err != nil {
				return fmt.Errorf("recover volume %s: %w", v.UID, err)
			}
		}
		wanted[s.mountPath(v.UID)] = true
		if err := s.mount(v.UID); err != nil {
			return fmt.Errorf("recover volume %s: %w", v.UID, err)
		}
		s.log.Info("volume recovered", v.UID.Attr(), v.Holder.Attr())
	}
	return s.unmountOthers(wanted)
}

func (s *Store) unmountOthers(wanted map[string]bool) error {
	mounted, err := s.mounts.Below(s.attach)
	if err != nil {
		return fmt.Errorf("recover volumes: %w", err)
	}
	for _, path := range mounted {
		if wanted[path] || path == s.attach {
			continue
		}
		if err := s.mounts.Unbind(path); err != nil {
			return fmt.Errorf("recover volumes: %w", err)
		}
		s.log.Warn("mount without a holder removed", logging.Path(path))
	}
	return nil
}

// Ensure makes a volume, or finds it as it is.
func (s *Store) Ensure(uid id.Disk) (Volume, error) {
	unlock, err := s.lock(uid)
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	v, err := s.read(uid)
	if err == nil || !errors.Is(err, fault.NotFound) {
		return v, err
	}
	tmp, err := os.MkdirTemp(s.data, making)
	if err != nil {
		return Volume{}, classify(fmt.Errorf("make volume %s: %w", uid, err))
	}
	n := note{Format: noteFormat, UID: string(uid), CreatedAt: time.Now().UTC()}
	err = errors.Join(makeData(filepath.Join(tmp, dataFolder)), writeNote(tmp, n), os.Chmod(tmp, 0o711))
	if err == nil {
		err = renameDurably(tmp, s.folder(uid))
	}
	if err != nil {
		return Volume{}, classify(fmt.Errorf("make volume %s: %w", uid, errors.Join(err, os.RemoveAll(tmp))))
	}
	s.log.Info("volume made", uid.Attr())
	return s.read(uid)
}

// Remove removes a volume and its data.
func (s *Store) Remove(uid id.Disk) error {
	unlock, err := s.lock(uid)
	if err != nil {
		return err
	}
	defer unlock()
	doomed := filepath.Join(s.data, removing+uid.Lower())
	v, err := s.read(uid)
	if !errors.Is(err, fault.NotFound) { // else what an earlier try has left
		if err != nil && fault.Reason(err) != ReasonBroken {
			return err
		}
		if err := s.unattached(v); err != nil {
			return err
		}
		if err := renameDurably(s.folder(uid), doomed); err != nil {
			return classify(fmt.Errorf("remove volume %s: %w", uid, err))
		}
	}
	if err := s.removeTree(doomed); err != nil {
		return classify(fmt.Errorf("remove volume %s: %w", uid, err))
	}
	if v.UID != "" {
		s.log.Info("volume removed", uid.Attr())
	}
	return nil
}

// unattached is an error while a volume is attached, by its note, or by the kernel's
// word where the note cannot be read.
func (s *Store) unattached(v Volume) error {
	if v.Holder != "" {
		return fault.WithReason(fault.New(fault.Conflict, "remove volume %s: sandbox %s has it", v.UID, v.Holder), ReasonInUse)
	}
	mounted, err := s.mounts.Below(s.mountPath(v.UID))
	if err != nil {
		return fault.New(fault.Unavailable, "remove volume %s: %w", v.UID, err)
	}
	if len(mounted) > 0 {
		return fault.WithReason(fault.New(fault.Conflict, "remove volume %s: it is mounted at %s", v.UID, mounted[0]), ReasonInUse)
	}
	return nil
}

// List returns all volumes ordered by uid, broken ones too.
func (s *Store) List() ([]Volume, error) {
	entries, err := os.ReadDir(s.data)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "list volumes: %w", err)
	}
	var volumes []Volume
	for _, e := range entries {
		uid := id.Disk(strings.ToUpper(e.Name()))
		if !e.IsDir() || id.CheckUID(string(uid)) != nil {
			continue // not a volume of ours
		}
		v, err := s.read(uid)
		switch {
		case errors.Is(err, fault.NotFound):
			continue // removed meanwhile
		case err != nil && fault.Reason(err) != ReasonBroken:
			return nil, err
		}
		volumes = append(volumes, v)
	}
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return volumes, nil
}

// read finds one volume. A broken one comes back with its uid and an error of
// reason VOLUME_BROKEN.
func (s *Store) read(uid id.Disk) (Volume, error) {
	n, err := readNote(s.folder(uid))
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Stat(s.folder(uid)); errors.Is(statErr, fs.ErrNotExist) {
			return Volume{}, fault.New(fault.NotFound, "volume %s is not on this node", uid)
		}
	}
	if err == nil && n.UID != string(uid) {
		err = fmt.Errorf("the note is about %s", n.UID)
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(s.folder(uid), dataFolder))
	}
	if unanswered(err) {
		return Volume{}, fault.New(fault.Unavailable, "read volume %s: %w", uid, err)
	}
	if err != nil {
		broken := fmt.Errorf("volume %s is broken: %w; its data is kept in %s", uid, err, s.folder(uid))
		return Volume{UID: uid, Broken: broken.Error()}, fault.WithReason(fault.New(fault.Conflict, "%w", broken), ReasonBroken)
	}
	v := Volume{UID: uid, Holder: id.Sandbox(n.Holder), Epoch: n.Epoch, CreatedAt: n.CreatedAt}
	switch _, err := os.Stat(filepath.Join(s.folder(uid), parkedFile)); {
	case err == nil:
		v.Parked = v.Holder != ""
	case !errors.Is(err, fs.ErrNotExist):
		return Volume{}, fault.New(fault.Unavailable, "read volume %s: %w", uid, err)
	}
	if v.Holder != "" && !v.Parked {
		v.Path = s.mountPath(uid)
	}
	return v, nil
}

func (s *Store) folder(uid id.Disk) string    { return filepath.Join(s.data, uid.Lower()) }
func (s *Store) mountPath(uid id.Disk) string { return filepath.Join(s.attach, uid.Lower()) }
