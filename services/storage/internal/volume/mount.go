package volume

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Kernel is the mount table of this machine. It needs CAP_SYS_ADMIN.
type Kernel struct{}

// Bind mounts the folder from on the folder to. If it is mounted there already
// it does nothing; if something else is, it is an error.
func (k Kernel) Bind(from, to string) error {
	mounted, err := k.Below(to)
	if err != nil {
		return err
	}
	for _, path := range mounted {
		if path != to {
			continue
		}
		same, err := sameFolder(from, to)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("bind %s on %s: something else is mounted there", from, to)
		}
		return nil
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", from, to, err)
	}
	// Copies in other mount namespaces would keep it busy after the unmount.
	if err := unix.Mount("", to, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s private: %w", to, err), unix.Unmount(to, unix.MNT_DETACH))
	}
	return nil
}

// Unbind unmounts what is mounted on the folder. It is never lazy: when it
// returns nil, nothing is mounted there.
func (k Kernel) Unbind(path string) error {
	mounted, err := k.Below(path)
	if err != nil {
		return err
	}
	for range mounted {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return nil
}

// Below lists what is mounted at or below a folder.
func (Kernel) Below(path string) ([]string, error) {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.Mountpoint != path && !strings.HasPrefix(i.Mountpoint, path+"/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	paths := make([]string, 0, len(infos))
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, nil
}

func sameFolder(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}
