package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
	"staddle.internal/kit/logging"
)

// Attach mounts a volume for its holder under an epoch; see AttachVolume of the
// contract.
func (s *Store) Attach(uid id.Disk, holder id.Sandbox, epoch uint64) (Volume, error) {
	unlock, err := s.lock(uid)
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	v, err := s.read(uid)
	if err != nil {
		return Volume{}, err
	}
	if err := mayAttach(v, holder, epoch); err != nil {
		return Volume{}, err
	}
	if v.Holder != holder || v.Epoch != epoch {
		n := note{Format: noteFormat, UID: string(uid), Holder: string(holder), Epoch: epoch, CreatedAt: v.CreatedAt}
		if err := writeNote(s.folder(uid), n); err != nil {
			return Volume{}, classify(fmt.Errorf("attach volume %s: %w", uid, err))
		}
	}
	if err := s.unpark(uid); err != nil {
		return Volume{}, classify(fmt.Errorf("attach volume %s: %w", uid, err))
	}
	if err := s.mount(uid); err != nil {
		return Volume{}, classify(fmt.Errorf("attach volume %s: %w", uid, err))
	}
	if v.Holder != holder || v.Parked {
		s.log.Info("volume attached", uid.Attr(), holder.Attr(), logging.Epoch(epoch))
	}
	return s.read(uid)
}

// mayAttach decides whether a volume may be attached; it is pure.
func mayAttach(v Volume, holder id.Sandbox, epoch uint64) error {
	switch {
	case epoch < v.Epoch:
		return fault.WithReason(fault.New(fault.Conflict, "attach volume %s: epoch %d is lower than %d, which was seen", v.UID, epoch, v.Epoch), ReasonStaleEpoch)
	case v.Holder == "" && epoch == v.Epoch:
		return fault.WithReason(fault.New(fault.Conflict, "attach volume %s: epoch %d was given back", v.UID, epoch), ReasonStaleEpoch)
	case v.Holder != "" && (v.Holder != holder || v.Epoch != epoch):
		return fault.WithReason(fault.New(fault.Conflict, "attach volume %s: sandbox %s has it under epoch %d", v.UID, v.Holder, v.Epoch), ReasonInUse)
	}
	return nil
}

// Detach unmounts a volume; see DetachVolume of the contract.
func (s *Store) Detach(uid id.Disk, holder id.Sandbox, epoch uint64) error {
	unlock, err := s.lock(uid)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := s.read(uid)
	switch {
	case errors.Is(err, fault.NotFound):
		return nil
	case fault.Reason(err) == ReasonBroken: // for whom it is attached nobody knows; that it is not mounted is made a fact
		return s.unmount(uid)
	case err != nil:
		return err
	}
	if again, err := mayDetach(v, holder, epoch); err != nil || again {
		return err
	}
	if err := s.unmount(uid); err != nil {
		return err
	}
	n := note{Format: noteFormat, UID: string(uid), Epoch: v.Epoch, CreatedAt: v.CreatedAt}
	if err := writeNote(s.folder(uid), n); err != nil {
		return classify(fmt.Errorf("detach volume %s: %w", uid, err))
	}
	if err := s.unpark(uid); err != nil { // a mark without a holder means nothing
		return classify(fmt.Errorf("detach volume %s: %w", uid, err))
	}
	s.log.Info("volume detached", uid.Attr(), v.Holder.Attr(), logging.Epoch(v.Epoch))
	return nil
}

// Park unmounts a volume that stays its holder's; see DetachVolume of the contract,
// with keep_right. The mark comes after the unmount and goes before the mount, so that
// a marked volume is never mounted. It is no part of the note, which the release before
// must be able to read.
func (s *Store) Park(uid id.Disk, holder id.Sandbox, epoch uint64) error {
	unlock, err := s.lock(uid)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := s.read(uid)
	switch {
	case errors.Is(err, fault.NotFound):
		return nil
	case fault.Reason(err) == ReasonBroken:
		return s.unmount(uid)
	case err != nil:
		return err
	}
	if already, err := mayDetach(v, holder, epoch); err != nil || already || v.Parked {
		return err
	}
	if err := s.unmount(uid); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.folder(uid), parkedFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), syncFolder(s.folder(uid)))
	}
	if err != nil {
		return classify(fmt.Errorf("park volume %s: %w", uid, err))
	}
	s.log.Info("volume parked", uid.Attr(), v.Holder.Attr(), logging.Epoch(v.Epoch))
	return nil
}

// unpark takes the mark away, durably.
func (s *Store) unpark(uid id.Disk) error {
	err := os.Remove(filepath.Join(s.folder(uid), parkedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncFolder(s.folder(uid))
}

// mounted says whether a volume is.
func (s *Store) mounted(uid id.Disk) (bool, error) {
	at, err := s.mounts.Below(s.mountPath(uid))
	return len(at) > 0, err
}

// mayDetach decides whether a volume may be detached, or is already; it is pure.
func mayDetach(v Volume, holder id.Sandbox, epoch uint64) (already bool, err error) {
	switch {
	case v.Holder == "":
		return true, nil
	case epoch < v.Epoch:
		return false, fault.WithReason(fault.New(fault.Conflict, "detach volume %s: it is attached under epoch %d, not %d", v.UID, v.Epoch, epoch), ReasonStaleEpoch)
	case epoch > v.Epoch:
		return false, fault.WithReason(fault.New(fault.Conflict, "detach volume %s: sandbox %s still has it under epoch %d", v.UID, v.Holder, v.Epoch), ReasonInUse)
	case holder != v.Holder:
		return false, fault.WithReason(fault.New(fault.Conflict, "detach volume %s: sandbox %s has it under epoch %d, not %s", v.UID, v.Holder, epoch, holder), ReasonOtherHolder)
	}
	return false, nil
}

func (s *Store) mount(uid id.Disk) error {
	if err := os.MkdirAll(s.mountPath(uid), 0o711); err != nil {
		return err
	}
	return s.mounts.Bind(filepath.Join(s.folder(uid), dataFolder), s.mountPath(uid))
}

func (s *Store) unmount(uid id.Disk) error {
	err := syncFolder(filepath.Join(s.folder(uid), dataFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing is left to be written
		return classify(fmt.Errorf("detach volume %s: %w", uid, err))
	}
	if err := s.mounts.Unbind(s.mountPath(uid)); err != nil {
		return fault.New(fault.Unavailable, "detach volume %s: %w", uid, err)
	}
	if err := os.Remove(s.mountPath(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return classify(fmt.Errorf("detach volume %s: %w", uid, err))
	}
	return nil
}
