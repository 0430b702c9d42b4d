// Package target owns how the command line reaches what it talks to: which
// installation is meant, with which identity, over which connection, and what
// to try when it cannot be reached.
//
// There are two kinds of target. Cluster is a coordinator, over mutual TLS with
// the identity of an operator. Node is the socket of one node's sandboxhost,
// which works without any coordinator. Both speak in kit/fault's kinds. It must
// never print, and never use a proxy of the environment. In the trail it is the
// door from the commands to the services.
package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"staddle.internal/kit/config"
	"staddle.internal/kit/fault"
)

// Flags is what the command line says about the target.
type Flags struct {
	// Root moves all files of an installation below a folder.
	Root string
	// NodeSocket is sandboxhost's socket of a node to talk to directly.
	NodeSocket string
	// Coordinator is host:port.
	Coordinator string
	// CA, Cert and Key are PEM files.
	CA, Cert, Key string
	// System means that the context file is not looked at.
	System bool
}

// Settings is the target that flags and context file say.
type Settings struct {
	// Paths of the installation on this machine.
	Paths config.Paths
	// Context is the file that says so; empty means that no file does.
	Context string
	// NodeSocket is sandboxhost's socket.
	NodeSocket string
	// Direct is true when commands go to NodeSocket and to no coordinator.
	Direct bool
	// Coordinator is host:port, and the files of the identity for it.
	Coordinator, CA, Cert, Key string
}

// Load joins the flags with the context: with a root, the identity that lies
// below it; else the caller's context file, if there is one; else the places of
// the system. A flag wins over each.
func Load(f Flags) (*Settings, error) {
	if f.Root != "" {
		abs, err := filepath.Abs(f.Root)
		if err != nil {
			return nil, fmt.Errorf("resolve --root: %w", err)
		}
		f.Root = abs
	}
	s, err := loadContext(f)
	if err != nil {
		return nil, err
	}
	for _, o := range []struct{ field, flag *string }{
		{&s.Coordinator, &f.Coordinator}, {&s.CA, &f.CA}, {&s.Cert, &f.Cert}, {&s.Key, &f.Key},
	} {
		if *o.flag != "" {
			*o.field = *o.flag
		}
	}
	s.NodeSocket = s.Paths.Socket("sandboxhost")
	if f.NodeSocket != "" {
		s.NodeSocket, s.Direct = f.NodeSocket, true
		if abs, err := filepath.Abs(f.NodeSocket); err == nil {
			s.NodeSocket = abs
		}
	}
	return s, nil
}

func loadContext(f Flags) (*Settings, error) {
	if f.Root == "" && !f.System {
		c, err := ReadContext()
		switch {
		case err == nil:
			return &Settings{
				Paths: config.Paths{Root: c.Root}, Context: c.file, Coordinator: c.Coordinator,
				CA: c.CA, Cert: c.Certificate, Key: c.Key,
			}, nil
		case fault.KindOf(err) != fault.NotFound && f.NodeSocket == "":
			return nil, err
		}
	}
	paths := config.Paths{Root: f.Root}
	pki := filepath.Join(paths.Etc(), "pki")
	return &Settings{
		Paths: paths, Coordinator: coordinatorOf(paths), CA: filepath.Join(pki, "ca.crt"),
		Cert: filepath.Join(pki, "operator.crt"), Key: filepath.Join(pki, "operator.key"),
	}, nil
}

// coordinatorOf is the address in node.yaml. A file that is absent, unreadable
// for the caller or wrong leaves the default: the processes that own the file
// complain about it, and the connection attempt names the address.
func coordinatorOf(p config.Paths) string {
	if n, err := config.LoadNode(p.NodeFile()); err == nil {
		return n.Coordinator.Address
	}
	return config.DefaultNode().Coordinator.Address
}

// exists reports whether a file is there; not being allowed to see it is an
// error.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
