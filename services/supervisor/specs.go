package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"staddle.internal/kit/config"
	"staddle.internal/kit/process"

	"staddle.internal/services/supervisor/internal/child"
	"staddle.internal/services/supervisor/internal/graph"
)

// coordinator is the one process that reads a file of its own.
const coordinator = "coordinator"

// gateway is the process that takes calls from other machines.
const gateway = "clusteraccess"

// systemPath is where programs are looked for when our environment does not say.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// specsOf says how each component is started.
func specsOf(p *process.Process, g graph.Graph) ([]child.Spec, error) {
	bin, err := p.Paths.Bin()
	if err != nil {
		return nil, fmt.Errorf("find own folder: %w", err)
	}
	var specs []child.Spec
	for _, c := range g.Components {
		if err := child.CheckCapabilities(c.Capabilities); err != nil {
			return nil, config.Wrong(p.ConfigPath, "supervisor.components: capabilities of %s: %s", c.Name, err)
		}
		if c.Name == config.ContainerdName {
			specs = append(specs, containerdSpec(p, c, bin))
			continue
		}
		s := child.Spec{
			Name: c.Name, Command: c.Command, Env: c.Env, Capabilities: c.Capabilities,
			Socket: p.Paths.Socket(c.Name),
		}
		switch c.Name { // those that are called over the network
		case coordinator:
			s.Address = func() string { return config.ListenAddress(p.Paths.CoordinatorFile(), config.CoordinatorAddress) }
		case gateway:
			s.Address = func() string { return config.ListenAddress(p.ConfigPath, config.GatewayDefault) }
		}
		if len(s.Command) == 0 {
			s.Command = ownCommand(p, c.Name, bin)
		}
		user, _, err := p.Config.Users.Of(c.Name)
		if err != nil {
			return nil, config.Wrong(p.ConfigPath, "users: %s", err)
		}
		s.UID, s.GID = user.UID, user.GID
		specs = append(specs, s)
	}
	return specs, nil
}

// ownCommand starts a process of ours: staddle-<name> if that is installed, else
// the one file that holds them all.
func ownCommand(p *process.Process, name, bin string) []string {
	command := []string{filepath.Join(bin, "staddle-"+name)}
	if _, err := os.Stat(command[0]); errors.Is(err, fs.ErrNotExist) && name != coordinator {
		command = []string{filepath.Join(bin, "staddle-node"), name}
	}
	if p.Paths.Root != "" {
		command = append(command, "--root", p.Paths.Root)
	}
	if name != coordinator {
		command = append(command, "--config", p.ConfigPath)
	}
	return command
}

// containerdSpec starts containerd with our configuration, and with our folder
// first among those in which it looks for its shim and runc.
func containerdSpec(p *process.Process, c config.Component, bin string) child.Spec {
	path := os.Getenv("PATH")
	if path == "" {
		path = systemPath
	}
	env := map[string]string{"PATH": bin + ":" + path}
	maps.Copy(env, c.Env)
	command := c.Command
	if len(command) == 0 {
		program := filepath.Join(bin, "containerd")
		if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
			program = "/usr/bin/containerd"
		}
		command = []string{program, "--config", filepath.Join(p.Paths.Var(config.ContainerdName), "config.toml")}
	}
	return child.Spec{Name: c.Name, Command: command, Env: env, Makes: p.Config.Containerd.Address, Foreign: true}
}

// makeAllFolders makes the folders of all processes, each owned by its process. It
// leaves what is there.
func makeAllFolders(p *process.Process, specs []child.Spec) error {
	if err := os.MkdirAll(p.Paths.Run(), 0o755); err != nil {
		return fmt.Errorf("make folder of sockets: %w", err)
	}
	for _, s := range specs {
		if err := makeFolders(p, s); err != nil {
			return fmt.Errorf("make folders of %s: %w", s.Name, err)
		}
	}
	return nil
}

func makeFolders(p *process.Process, s child.Spec) error {
	if s.Foreign {
		return writeContainerdConfig(p.Paths, p.Config)
	}
	dirs := map[string]os.FileMode{
		p.Paths.Var(s.Name):                  0o700,
		filepath.Join(p.Paths.Run(), s.Name): 0o711, // namespaces, mounts, what ends with the boot
	}
	if s.Name == coordinator { // it makes the identities of the machine there at its first start
		dirs[filepath.Join(p.Paths.Etc(), "pki")] = 0o755
	}
	for dir, mode := range dirs {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
		if err := letThrough(filepath.Dir(dir)); err != nil {
			return err
		}
		if err := os.Chown(dir, s.UID, s.GID); err != nil {
			return err
		}
	}
	return nil
}

// letThrough lets the users of the processes pass a folder that was made for root
// alone, without letting them see what is in it.
func letThrough(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	const search = 0o011
	if info.Mode().Perm()&search == search {
		return nil
	}
	return os.Chmod(dir, info.Mode().Perm()|search)
}
