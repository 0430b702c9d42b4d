package config

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"

	"staddle.internal/kit/fault"
)

// Users says which system users are which process.
type Users struct {
	// FirstID is the first of a range of numeric ids, one per process in the
	// order of Processes. 0 means that there is no such range.
	FirstID int `yaml:"first_id"`
	// NamePrefix and the name of a process together are the name of its user, as
	// in "staddle-storage". Empty means that users are not told by name. At most
	// one of FirstID and NamePrefix is set; with neither, all processes run as one
	// user.
	NamePrefix string `yaml:"name_prefix"`
	// AdminGroup is a group, by name or number, whose members are operators. A
	// group that does not exist has no members.
	AdminGroup string `yaml:"admin_group"`
}

// Account is the user of a process and that user's own group.
type Account struct{ UID, GID int }

// Processes lists the processes that have a user of their own, in the order of
// their ids.
func Processes() []string {
	return []string{"clusteraccess", "storage", "storage-agent", "sandboxhost", "sandbox-agent", "presence", "coordinator"}
}

// Separate reports whether each process runs as a user of its own.
func (u Users) Separate() bool { return u.FirstID != 0 || u.NamePrefix != "" }

// Of returns the account of a process, and false when all share one user or the
// name has none. It returns fault.NotFound when the account has a name that this
// machine does not know: whoever starts the process must not start it as another.
func (u Users) Of(process string) (Account, bool, error) {
	i := slices.Index(Processes(), process)
	if i < 0 || !u.Separate() {
		return Account{}, false, nil
	}
	if u.FirstID != 0 {
		return Account{u.FirstID + i, u.FirstID + i}, true, nil
	}
	a, err := lookup(u.NamePrefix + process)
	return a, err == nil, err
}

// ID returns the uid of a process, and false when all share one user, the name has
// none, or the machine does not know its user: a user that does not exist is
// nobody.
func (u Users) ID(process string) (int, bool) {
	a, ok, err := u.Of(process)
	return a.UID, ok && err == nil
}

func lookup(name string) (Account, error) {
	found, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		return Account{}, fault.New(fault.NotFound, "look up user %s: this machine has no such user; make it with systemd-sysusers or useradd --system", name)
	}
	if err != nil {
		return Account{}, fmt.Errorf("look up user %s: %w", name, err)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return Account{}, fmt.Errorf("look up user %s: %w", name, err)
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return Account{}, fmt.Errorf("look up user %s: %w", name, err)
	}
	return Account{uid, gid}, nil
}
