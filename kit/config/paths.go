package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Paths says where everything of one node lies. The zero value is the place on a
// real machine; a Root moves all of it, so that several nodes live on one.
type Paths struct {
	// Root is the folder given with --root. Empty means the system's own places.
	Root string
}

// At returns the paths below a root given by a person. Links on the way to it are
// followed once, here: the table of mounts names no links, and who looks there for
// what is mounted below the root must find it. Empty is the system's own places.
func At(root string) (Paths, error) {
	if root == "" {
		return Paths{}, nil
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return Paths{}, err
	}
	// What does not exist yet cannot be a link.
	there, rest := abs, ""
	for {
		real, err := filepath.EvalSymlinks(there)
		if err == nil {
			return Paths{Root: filepath.Join(real, rest)}, nil
		}
		if _, linkErr := os.Lstat(there); !errors.Is(linkErr, fs.ErrNotExist) {
			return Paths{}, err // it is there, and leads nowhere or must not be read
		}
		there, rest = filepath.Dir(there), filepath.Join(filepath.Base(there), rest)
	}
}

func (p Paths) below(system, moved string) string {
	if p.Root == "" {
		return system
	}
	return filepath.Join(p.Root, moved)
}

// Etc is the folder of configuration: /etc/staddle or <root>/etc.
func (p Paths) Etc() string { return p.below("/etc/staddle", "etc") }

// Var is the folder of a process's durable data: /var/lib/staddle/<process> or
// <root>/var/<process>.
func (p Paths) Var(process string) string {
	return filepath.Join(p.below("/var/lib/staddle", "var"), process)
}

// Run is the folder of sockets and everything that ends with the boot:
// /run/staddle or <root>/run.
func (p Paths) Run() string { return p.below("/run/staddle", "run") }

// Socket is where a process serves: <run>/<process>.sock.
func (p Paths) Socket(process string) string { return filepath.Join(p.Run(), process+".sock") }

// SocketSpares is the folder of the second names of sockets, from which the
// supervisor brings back the first ones: beside Run, so that the loss of that folder
// leaves it, and on the same file system.
func (p Paths) SocketSpares() string { return p.Run() + ".sockets" }

// Lock is the file a process locks while it uses its data folder.
func (p Paths) Lock(process string) string { return filepath.Join(p.Var(process), "lock") }

// NodeFile is the file that all processes of a node read.
func (p Paths) NodeFile() string { return filepath.Join(p.Etc(), "node.yaml") }

// CoordinatorFile is the file of the coordinator.
func (p Paths) CoordinatorFile() string { return filepath.Join(p.Etc(), "coordinator.yaml") }

// ComponentCgroup is the cgroup, below the root of a hierarchy, in which the
// supervisor keeps the node's components: beside the cgroup of the workloads, never
// above it, and one per root, so that several nodes live on one machine. None lies
// above another's.
func (p Paths) ComponentCgroup() string {
	return filepath.Join("staddle-services.slice", "node"+p.tag())
}

// WorkloadCgroup is the cgroup, below the root of a hierarchy, of the node's
// workloads where node.yaml names none: one per root, because whoever takes a
// node down ends all that runs in it.
func (p Paths) WorkloadCgroup() string { return "staddle" + p.tag() + ".slice" }

// tag tells the names of a node with a root apart from those of others.
func (p Paths) tag() string {
	if p.Root == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(p.Root))
	return "-" + hex.EncodeToString(sum[:6])
}

// Bin is the folder of our binaries: the one this process was started from.
func (p Paths) Bin() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Dir(exe), nil
}

// Binary is the path of a process's binary, staddle-<process>, beside our own.
func (p Paths) Binary(process string) (string, error) {
	dir, err := p.Bin()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "staddle-"+process), nil
}
