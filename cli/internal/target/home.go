package target

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// Home is a person for whom a context file is kept.
type Home struct {
	// Dir is the folder of configuration, such as ~/.config.
	Dir string
	// UID and GID own what is written; -1 leaves the owner alone.
	UID, GID int
}

func (h Home) folder() string { return filepath.Join(h.Dir, "staddle") }
func (h Home) file() string   { return filepath.Join(h.folder(), "config.yaml") }

// Caller is the person who calls: the one behind sudo, so that a command is about
// the same installation with it and without; else the one who runs this. Nil
// means that there is no place for a context file.
func Caller() *Home {
	if h := behindSudo(os.Getenv, user.LookupId); h != nil {
		return h
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil // no HOME: nobody to keep a context for
	}
	return &Home{Dir: dir, UID: -1, GID: -1}
}

// behindSudo is the person who called sudo. A HOME that is neither root's nor that
// person's was chosen on purpose, and is taken as it is.
func behindSudo(getenv func(string) string, lookup func(uid string) (*user.User, error)) *Home {
	person, err := lookup(getenv("SUDO_UID"))
	if err != nil {
		return nil // no sudo, or no such user any more
	}
	root, err := lookup("0")
	if home := getenv("HOME"); err != nil || home != "" && home != root.HomeDir && home != person.HomeDir {
		return nil
	}
	uid, uidErr := strconv.Atoi(person.Uid)
	gid, gidErr := strconv.Atoi(person.Gid)
	if errors.Join(uidErr, gidErr) != nil {
		return nil
	}
	return &Home{Dir: filepath.Join(person.HomeDir, ".config"), UID: uid, GID: gid}
}
