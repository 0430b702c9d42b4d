package inroot

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"staddle.internal/kit/fault"
)

// nobody is the number of a user or group that has none on the other side.
const nobody = 65534

// Identity is who a process is on the node, and how the numbers of users and groups that it
// sees are those of the node.
type Identity struct {
	// UID and GID of the process, as the node sees them.
	UID, GID   int
	uids, gids []extent
}

// extent is a run of numbers of a user namespace.
type extent struct{ inside, outside, count uint64 }

// IdentityOf reads who a process is. The caller makes sure afterwards that the process was
// still the one that is meant.
func IdentityOf(pid int) (Identity, error) {
	folder := "/proc/" + strconv.Itoa(pid) + "/"
	raw, err := os.ReadFile(folder + "status")
	if err != nil {
		return Identity{}, err
	}
	i := Identity{UID: -1, GID: -1}
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) != 5 {
			continue
		}
		n, err := strconv.Atoi(words[4]) // the one that counts for files
		switch {
		case words[0] == "Uid:" && err == nil:
			i.UID = n
		case words[0] == "Gid:" && err == nil:
			i.GID = n
		}
	}
	if i.UID < 0 || i.GID < 0 {
		return Identity{}, fault.New(fault.Internal, "%sstatus names no user", folder)
	}
	if i.uids, err = extents(folder + "uid_map"); err != nil {
		return Identity{}, err
	}
	i.gids, err = extents(folder + "gid_map")
	return i, err
}

// extents reads a map of a user namespace.
func extents(path string) ([]extent, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []extent
	for line := range bytes.Lines(raw) {
		var e extent
		if _, err := fmt.Sscan(string(line), &e.inside, &e.outside, &e.count); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// Outside gives the numbers of the node for those that the process sees. One without any
// is Invalid.
func (i Identity) Outside(uid, gid int) (int, int, error) {
	u, okU := through(i.uids, uint64(uid), func(e extent) (uint64, uint64) { return e.inside, e.outside })
	g, okG := through(i.gids, uint64(gid), func(e extent) (uint64, uint64) { return e.inside, e.outside })
	if uid < 0 || gid < 0 || !okU || !okG {
		return 0, 0, fault.New(fault.Invalid, "user %d and group %d: the container has no such numbers", uid, gid)
	}
	return u, g, nil
}

// Inside gives the numbers that the process sees for those of the node; 65534 for those that it
// has no number for, as the kernel does.
func (i Identity) Inside(uid, gid uint32) (int, int) {
	u, ok := through(i.uids, uint64(uid), func(e extent) (uint64, uint64) { return e.outside, e.inside })
	if !ok {
		u = nobody
	}
	g, ok := through(i.gids, uint64(gid), func(e extent) (uint64, uint64) { return e.outside, e.inside })
	if !ok {
		g = nobody
	}
	return u, g
}

func through(all []extent, n uint64, ends func(extent) (from, to uint64)) (int, bool) {
	for _, e := range all {
		if from, to := ends(e); n >= from && n-from < e.count {
			return int(to + n - from), true
		}
	}
	return 0, false
}
